#!lua flags=allow-oom
-- A body that can be made again from what is there (a salvaged trajectory, of its journal) is kept as long as its job; the first one stays.
-- Above maxmemory too: a full Redis drains what is in it.
-- ARGV: job, attempt, kind of body (stage name), body, ttl_ms at least
-- Returns {1} when it was kept, {0} when there was one.
local job, key = ARGV[1], body_key(ARGV[1], ARGV[2], ARGV[3])
return {call('SET', key, ARGV[4], 'NX', 'PX', math.max(tonumber(ARGV[5]), call('PTTL', job_key(job)))) and 1 or 0}
