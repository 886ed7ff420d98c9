#!lua flags=allow-oom
-- needs: ledger
-- Lets go of a run that was closed because its trainer was gone, long after that: its ledger, its results and its name. What is left of its jobs, groups
-- and templates has no owner then (drop_unowned.lua). A run that somebody opened again, or in which something is open, stays. Idempotent.
-- ARGV: '1' = only say what would happen, run, ms since the close
-- Returns {'forgotten', records in its results, ms since the close}, or {'more'} when a part of its steps went first, or {'stays'}.
local dry, run = ARGV[1] == '1', ARGV[2]
local rk = run_key(run)
local r = hash_or_nothing(rk, 'st', 'why', 'closed')
if r.st ~= 'closed' or r.why ~= 'abandoned' or not r.closed or NOW - tonumber(r.closed) < tonumber(ARGV[3]) then return {'stays'} end
if call('EXISTS', open_key(run)) == 1 then return {'stays'} end
local records = redis.pcall('XLEN', results_key(run))
if type(records) ~= 'number' then records = 0 end
local since = NOW - tonumber(r.closed)
if dry then return {'forgotten', records, since} end
local STEPS_A_CALL = 2000
local steps = redis.pcall('ZRANGE', steps_key(run), 0, STEPS_A_CALL - 1)
if steps.err then steps = {} end
for _, k in ipairs(steps) do
  unlink(step_key(run, k))
  unlink(step_groups_key(run, k))
end
if #steps == STEPS_A_CALL then
  call('ZREM', steps_key(run), unpack(steps))
  return {'more'}
end
unlink(step_key(run, NEXT_STEP))
unlink(step_groups_key(run, NEXT_STEP))
for _, cls in ipairs(call('SMEMBERS', P .. 'classes')) do unlink(queue_key(run, cls)) end
for _, key in ipairs({rk, results_key(run), steps_key(run), reserve_key(run), prompt_bodies_key(run), marks_key(run), flying_key(run),
  parked_key(run), window_key(run), P .. 'vals:' .. run, P .. 'aw:' .. run, P .. 'gw:' .. run}) do
  unlink(key)
end
call('ZREM', P .. 'runs', run)
return {'forgotten', records, since}
