#!lua flags=allow-oom
-- The trainer is there: its run's keys live on. Fenced by incarnation.
-- ARGV: run, inc
-- Returns {'ok'} or {'stale', inc} or {'closed', state}.
local run = ARGV[1]
local refusal = run_refusal(run, ARGV[2])
if refusal then return refusal end
local rk = run_key(run)
local ttl = tonumber(call('HGET', rk, 'ttl_ms'))
call('HSET', rk, 'contact', NOW)
call('ZADD', P .. 'runs', NOW, run)
for _, key in ipairs({rk, results_key(run), open_key(run), P .. 'steps:' .. run, P .. 'p:' .. run, P .. 'pb:' .. run, P .. 'pm:' .. run,
  P .. 'fly:' .. run, P .. 'ready:' .. run, P .. 'servers:' .. run}) do
  keep(key, ttl)
end
for _, key in ipairs(call('SMEMBERS', P .. 'classes')) do keep(queue_key(run, key), ttl) end
return {'ok'}
