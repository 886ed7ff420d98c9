#!lua flags=allow-oom
-- needs: ledger
-- A step has its target, or ends short because no prompt is left: marked once, its record appended, what it makes redundant cancelled with one
-- message, all in one step. Fenced by the run's incarnation and rev. The rule that spares groups with a finished member is judged again here.
-- ARGV: run, inc, rev, step, how (full | short), spare (1 = leave groups with a finished member alone), figures of the monitors
--       (JSON), group in flight that is redundant...
-- Returns {'reached', rev, groups given up...}; or {'moved', inc, rev}, {'closed', state}, {'not_yet', accepted, target}.
local run, inc, rev, k, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local refusal = moved(run, inc, rev)
if refusal then return refusal end
local rk, sk = run_key(run), step_key(run, k)
local SHORTAGES = {'paused', 'no_workers', 'prompts', 'queue_full'}
local TOKEN_COUNTERS = {'tokens_kept', 'tokens_filtered', 'tokens_surplus', 'tokens_stale', 'tokens_cancelled', 'tokens_late', 'tokens_failed'}
if call('HGET', rk, 'first') == k then note_shortage(run, call('HGET', rk, 'short') or '') end
local s = hash(sk, 'st', 'acc', 'target', 'n', 't', 'filtered', 'dropped', 'dead', 'cancelled', 'surplus', 'stale', 'front', 'cut_ms',
  'short.paused', 'short.no_workers', 'short.prompts', 'short.queue_full', unpack(TOKEN_COUNTERS))
if s.st ~= 'open' then return {'moved', inc, rev} end
if how == 'short' then
  local over = call('HGET', rk, 'ended') == inc and call('EXISTS', reserve_key(run), flying_key(run), parked_key(run)) == 0
  if not over then return {'not_yet', s.acc, s.target} end
elseif tonumber(s.acc) < tonumber(s.target) then
  return {'not_yet', s.acc, s.target}
end
local joined = {}
local lines = call('HGETALL', step_groups_key(run, k))
for i = 1, #lines, 2 do
  local turn = string.match(lines[i + 1], '^informative|(%d+)|')
  if turn then joined[#joined + 1] = {tonumber(turn), lines[i]} end
end
table.sort(joined, function(a, b) return a[1] < b[1] end)
local ids = {}
for i, pair in ipairs(joined) do ids[i] = pair[2] end
local given_up = give_up_groups(run, {unpack(ARGV, 8)}, 'redundant', ARGV[6] == '1')
for _, grp in ipairs(given_up) do call('HSET', group_key(grp), 'cutby', k) end
local took = NOW - tonumber(s.t)
-- `watched_ms`: the time in which it was the oldest open step; `short.<reason>`: milliseconds of it in which too little was at work
local figures = {'cut_ms', s.cut_ms or '', 'watched_ms', NOW - tonumber(s.front or s.t), 'monitors', ARGV[7]}
for _, counter in ipairs(TOKEN_COUNTERS) do
  figures[#figures + 1], figures[#figures + 2] = counter, s[counter] or 0
end
for _, why in ipairs(SHORTAGES) do
  figures[#figures + 1], figures[#figures + 2] = 'short.' .. why, s['short.' .. why] or 0
end
local rid = call('XADD', results_key(run), '*', 'kind', 'step', 'run', run, 'k', k, 'groups', table.concat(ids, ' '), 'target', s.target, 'n', s.n,
  'short', how == 'short' and '1' or '', 'filtered', s.filtered or 0, 'dropped', s.dropped or 0, 'dead', s.dead or 0, 'cancelled', s.cancelled or 0,
  'surplus', s.surplus or 0, 'stale', s.stale or 0, 'redundant', #given_up, 'took_ms', took, 'inc', inc, unpack(figures))
call('HSET', sk, 'st', 'reached', 'how', how, 'reached', NOW, 'rid', rid, 'redundant', #given_up, 'monitors', ARGV[7])
call('HINCRBY', rk, 'steps.reached', 1)
if call('HGET', rk, 'first') == k then find_first(run, k) end
touch_ledger(run, k)
return {'reached', raise_rev(run), unpack(given_up)}
