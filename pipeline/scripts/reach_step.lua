#!lua flags=allow-oom
-- needs: ledger
-- A step has its target, or ends short because no prompt is left: marked once, its record appended, what it makes redundant cancelled with one
-- message, all in one step. Fenced by the run's incarnation and rev. The rule that spares groups is judged again here.
-- ARGV: run, inc, rev, step, how (full | short), spare (see give_up_groups in ledger.lua), figures of the monitors
--       (JSON), group in flight that is redundant...
-- Returns {'reached', rev, groups given up...}; or {'moved', inc, rev}, {'closed', state}, {'not_yet', accepted, target}.
local run, inc, rev, k, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local refusal = moved(run, inc, rev)
if refusal then return refusal end
local rk = run_key(run)
local s = step_figures(run, k)
if s.st ~= 'open' then return {'moved', inc, rev} end
if how == 'short' then
  local over = call('HGET', rk, 'ended') == inc and call('EXISTS', reserve_key(run), flying_key(run), parked_key(run)) == 0
  if not over then return {'not_yet', s.acc, s.target} end
elseif tonumber(s.acc) < tonumber(s.target) then
  return {'not_yet', s.acc, s.target}
end
local given_up = give_up_groups(run, {unpack(ARGV, 8)}, 'redundant', ARGV[6])
for _, grp in ipairs(given_up) do call('HSET', group_key(grp), 'cutby', k) end
end_step(run, inc, k, s, how, #given_up, ARGV[7], '')
return {'reached', raise_rev(run), unpack(given_up)}
