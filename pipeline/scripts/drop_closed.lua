#!lua flags=allow-oom
-- needs: ledger
-- A closed or parked group that cannot be accounted (its run expired, or its keys are none of ours any more) leaves the ledger, with a line for the
-- people who look at failures. Its prompt, known by the group's id, is dead: an epoch adds up, and what breaks its group each time is not drawn for
-- ever. Idempotent.
-- ARGV: group, why
-- Returns {removed}.
local grp = ARGV[1]
local run, prompt, draw = string.match(grp, '^([^.]*)%.(.*)%.(%d+)$')
run = run or string.match(grp, '^[^.]*')
local removed = call('ZREM', P .. 'z:closed', grp)
for _, key in ipairs({flying_key(run), parked_key(run)}) do
  if redis.pcall('ZREM', key, grp) == 1 then removed = 1 end
end
if removed == 1 then
  tell_dead('job', '', 'grp', grp, 'run', run, 'stage', '', 'why', ARGV[2])
  -- a run that is gone is not made again by its counters; marks that are none of ours either keep no group
  if call('EXISTS', run_key(run)) == 1 then pcall(finish_prompt, run, {prompt = prompt, draw = draw}, 'dead') end
end
return {removed}
