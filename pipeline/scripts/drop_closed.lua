#!lua flags=allow-oom
-- needs: ledger
-- A closed group that cannot be accounted (its run expired, or its keys are none of ours any more) leaves the record of closed groups, with a line
-- for the people who look at failures. Idempotent.
-- ARGV: group, why
-- Returns {removed}.
local grp = ARGV[1]
local removed = call('ZREM', P .. 'z:closed', grp)
redis.pcall('ZREM', flying_key(string.match(grp, '^[^.]*')), grp)
if removed == 1 then
  call('XADD', P .. 's:dead', 'MAXLEN', '~', DEAD_MAXLEN, '*', 'job', '', 'grp', grp, 'run', string.match(grp, '^[^.]*'), 'stage', '', 'why', ARGV[2])
end
return {removed}
