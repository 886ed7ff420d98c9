#!lua flags=allow-oom
-- needs: pool
-- A server took the abort of calls: nobody has to ask it again. Idempotent. ARGV: run, url, ms until it is due again, then call ids
-- Returns {those that still stood}.
local done = call('HDEL', aborts_key(ARGV[1], ARGV[2]), unpack(ARGV, 4))
call('ZADD', P .. 'looks', 'XX', 'LT', NOW + tonumber(ARGV[3]), ARGV[1] .. ' ' .. ARGV[2])
count(pool_run_key(ARGV[1]), 'aborted', done)
return {done}
