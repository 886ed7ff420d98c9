#!lua flags=allow-oom
-- needs: ledger
-- A step is cancelled: it ends short with what joined it, and groups in flight that were launched for it are given up, all of them when no other step
-- is open. They are marked and their workers told here, at most `most` groups a call; the caller settles their members (`cancel.lua`), and whoever
-- finds them does when it dies. Fenced by the run's incarnation; not by its rev: it is no decision on a state. Again: what is left of it.
-- ARGV: run, inc, step, reason, most
-- Returns {'more' or 'cancelled', groups given up by this call...}; or {'ended', how} (nothing is left to cancel), {'unknown'}, {'stale', inc},
-- {'closed', state}.
local run, inc, k, reason, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local refusal = inc_refusal(run, inc)
if refusal then return refusal end
local s = step_figures(run, k)
if not s.st then return {'unknown'} end
if s.st ~= 'open' and not s.cx then return {'ended', s.how} end
reason = s.cx or reason
-- What went on for later steps, and what was launched since, is not its: a call that comes again means what the first one meant.
local before = hash(step_key(run, k), 'cxalone', 'reached')
local alone, until_ms = before.cxalone == '1', tonumber(before.reached or NOW)
if s.st == 'open' then
  alone = true
  for _, other in ipairs(call('ZRANGEBYSCORE', steps_key(run), call('HGET', run_key(run), 'first') or '+inf', '+inf')) do
    if other ~= k and call('HGET', step_key(run, other), 'st') == 'open' then alone = false end
  end
  call('HSET', step_key(run, k), 'cxalone', alone and '1' or '')
end
local groups = {}
for _, grp in ipairs(call('ZRANGE', flying_key(run), 0, -1)) do
  local g = hash_or_nothing(group_key(grp), 'step', 'st', 't')
  if #groups < most and g.st == 'open' and (g.step == k or (alone and tonumber(g.t) <= until_ms)) then groups[#groups + 1] = grp end
end
local given_up = give_up_groups(run, groups, reason, '0', true)
for _, grp in ipairs(given_up) do call('HSET', group_key(grp), 'cutby', k) end
if s.st == 'open' then
  end_step(run, inc, k, s, 'cancelled', #given_up, '', reason)
elseif #given_up > 0 then
  call('HINCRBY', step_key(run, k), 'redundant', #given_up)
end
raise_rev(run)
wake('step_cancelled', run)
return {#groups == most and 'more' or 'cancelled', unpack(given_up)}
