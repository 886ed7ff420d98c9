#!lua flags=allow-oom
-- needs: ledger
-- Groups in flight that are past their deadline: members that have not ended are cancelled for it, those that have stand. The group closes by its
-- members' ends, like any other. Judged again here by the clock of Redis; nobody's deadline is judged while the janitor keeps quiet after an
-- outage, and time in which the run's deadlines stood still (stand_still.lua) does not count. Fenced by incarnation; idempotent by the group's mark `late`.
-- ARGV: run, inc, group...
-- Returns {'ok', groups that were late...}; or {'moved', inc, rev}, {'closed', state}.
local run, inc = ARGV[1], ARGV[2]
local refusal = moved(run, inc, call('HGET', run_key(run), 'rev'))
if refusal then return refusal end
local out = {'ok'}
if tonumber(call('HGET', P .. 'janitor', 'quiet_until') or '0') > NOW then return out end
local stood, stands = stood_still(run)
if stands then return out end
for i = 3, #ARGV do
  local grp = ARGV[i]
  local g = hash(group_key(grp), 'st', 'want', 'late_at', 'late', 'cx', 'stood')
  if g.st == 'open' and not g.late and not g.cx and g.late_at and tonumber(g.late_at) + stood - tonumber(g.stood or '0') <= NOW then
    call('HSET', group_key(grp), 'late', NOW)
    for m = 0, tonumber(g.want) - 1 do cancel_job(grp .. '.' .. m, 'deadline') end
    out[#out + 1] = grp
  end
end
if #out > 1 then
  tell_cancel('group', 'deadline', {unpack(out, 2)})
  call('HINCRBY', run_key(run), 'groups.late', #out - 1)
end
return out
