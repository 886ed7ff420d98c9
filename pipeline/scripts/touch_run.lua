#!lua flags=allow-oom
-- The trainer is there: its run's keys live on, with those of its steps that are open or not acked (of the newest). Fenced by incarnation.
-- ARGV: run, inc
-- Returns {'ok'} or {'stale', inc} or {'closed', state}.
local run = ARGV[1]
local refusal = run_refusal(run, ARGV[2])
if refusal then return refusal end
local rk = run_key(run)
local ttl = tonumber(call('HGET', rk, 'ttl_ms'))
call('HSET', rk, 'contact', NOW, 'away', hash_or_nothing(P .. 'janitor', 'away_ms').away_ms or 0)
call('ZADD', P .. 'runs', NOW, run)
for _, key in ipairs({rk, results_key(run), open_key(run), P .. 'steps:' .. run, P .. 'p:' .. run, P .. 'pb:' .. run, P .. 'pm:' .. run,
  P .. 'fly:' .. run, P .. 'ready:' .. run, P .. 'mon:' .. run, P .. 'vals:' .. run}) do
  keep(key, ttl)
end
local NEWEST_STEPS = 128
local function keep_step(k)
  keep(P .. 'sg:' .. run .. ':' .. k, ttl)
  keep(step_key(run, k), ttl)
end
keep_step('next')
for _, k in ipairs(call('ZREVRANGE', P .. 'steps:' .. run, 0, NEWEST_STEPS - 1)) do
  local s = hash(step_key(run, k), 'st', 'rid')
  if s.st == 'open' or (s.rid and #call('XRANGE', results_key(run), s.rid, s.rid) > 0) then keep_step(k) end
end
for _, key in ipairs(call('SMEMBERS', P .. 'classes')) do keep(queue_key(run, key), ttl) end
return {'ok'}
