#!lua flags=allow-oom
-- A trainer takes a run: a new incarnation fences the one before. Idempotent by nonce. A run that was cancelled or closed is open again, and what it
-- was cancelled with stays cancelled. Weight and quota that it does not name stay as they are. Above maxmemory too: who takes a run drains it.
-- ARGV: run, nonce, ttl_ms (of its keys), weight or '', quota or '', gone_ms (without a sign of its trainer, until the run is closed)
-- Returns {incarnation}.
local run, nonce = ARGV[1], ARGV[2]
local rk = run_key(run)
local r = hash(rk, 'inc', 'nonce', 'cx', 'ver')
if r.nonce ~= nonce then
  call('HINCRBY', rk, 'inc', 1)
  call('HSET', rk, 'st', 'open', 'nonce', nonce, 'ttl_ms', ARGV[3], 'gone_ms', ARGV[6])
  if ARGV[4] ~= '' then call('HSET', rk, 'weight', ARGV[4]) else call('HSETNX', rk, 'weight', 1) end
  if ARGV[5] ~= '' then call('HSET', rk, 'quota', ARGV[5]) else call('HSETNX', rk, 'quota', 0) end
  call('HSETNX', rk, 'rev', 0)
  call('HSETNX', rk, 'created', NOW)
  -- what its servers hold is not known before its trainer says so; the one before may have set a version that its successor has no weights of
  if r.ver then call('HSET', rk, 'ver.was', r.ver) end
  call('HDEL', rk, 'ver')
  -- it may have mended what broke its groups
  call('HDEL', rk, 'broken', 'broken.t')
  if r.cx then
    call('HSET', rk, 'cx.inc', r.inc, 'cx.why', r.cx)
    call('HDEL', rk, 'cx')
  end
end
call('HDEL', rk, 'why', 'closed')
call('HSET', rk, 'contact', NOW, 'away', hash_or_nothing(P .. 'janitor', 'away_ms').away_ms or 0)
keep(rk, tonumber(ARGV[3]))
call('ZADD', P .. 'runs', NOW, run)
return {call('HGET', rk, 'inc')}
