#!lua flags=allow-oom
-- needs: pool
-- A server took the abort of calls: nobody has to ask it again. Idempotent. ARGV: run, url, then call ids
-- Returns {those that still stood}.
local done = call('HDEL', aborts_key(ARGV[1], ARGV[2]), unpack(ARGV, 3))
count(pool_run_key(ARGV[1]), 'aborted', done)
return {done}
