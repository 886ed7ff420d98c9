#!lua flags=allow-oom
-- A trainer takes a run: a new incarnation fences the one before. Idempotent by nonce. A run that was cancelled is open again, and what it was
-- cancelled with stays cancelled. Above maxmemory too: who takes a run drains it.
-- ARGV: run, nonce, ttl_ms, weight, quota, window
-- Returns {incarnation}.
local run, nonce = ARGV[1], ARGV[2]
local rk = run_key(run)
local r = hash(rk, 'inc', 'nonce', 'cx')
if r.nonce ~= nonce then
  call('HINCRBY', rk, 'inc', 1)
  call('HSET', rk, 'st', 'open', 'nonce', nonce, 'ttl_ms', ARGV[3], 'weight', ARGV[4], 'quota', ARGV[5], 'contact', NOW)
  call('HSETNX', rk, 'rev', 0)
  call('HSETNX', rk, 'created', NOW)
  if r.cx then
    call('HSET', rk, 'cx.inc', r.inc, 'cx.why', r.cx)
    call('HDEL', rk, 'cx')
  end
end
keep(rk, tonumber(ARGV[3]))
call('ZADD', P .. 'runs', NOW, run)
return {call('HGET', rk, 'inc')}
