#!lua
-- Units (single jobs, or whole groups) enter the queue of their run; refused whole when Redis is at its bound. Idempotent by unit id, and what is
-- known already asks for no room.
-- No allow-oom: above maxmemory the server itself refuses.
-- ARGV: run, inc, template id, template body, task, class, priority, wall_ms, max_failed, max_lost, reserved bytes a job, most waiting, window, recovery,
--       serial of the validation they are part of ('' = none),
--       then per unit: id, members (0 = single job), prompt id, draw, policy version, prompt body, digest of a single job's request ('' = none)
-- Returns {'other', unit} when a job is there with another digest than its unit has: nothing is accepted. Else per unit 'ok', 'dup' (it is there) or 'acked' (its trainer had its result and let go of it: it does not run again); or {'stale', inc}, {'closed', state}, {'full', why, retry_after_ms} for all.
local run = ARGV[1]
local refusal = run_refusal(run, ARGV[2])
if refusal then return refusal end
local r = hash(run_key(run), 'ttl_ms')
local c = {run = run, inc = ARGV[2], tpl = ARGV[3], task = ARGV[5], cls = ARGV[6], pri = tonumber(ARGV[7]), wall_ms = tonumber(ARGV[8]),
  mf = ARGV[9], ml = ARGV[10], res = tonumber(ARGV[11]), ttl_ms = tonumber(r.ttl_ms), recovery = ARGV[14],
  val = ARGV[15] ~= '' and ARGV[15] or nil}
local function known_as(unit, members)
  if call('EXISTS', members == 0 and job_key(unit) or group_key(unit)) == 1 then return 'dup' end
  return was_done(run, unit) and 'acked' or nil
end
local jobs, bytes = 0, 0
for i = 16, #ARGV, 7 do
  local members = tonumber(ARGV[i + 1])
  if ARGV[i + 6] ~= '' then
    local kept = call('HGET', job_key(ARGV[i]), 'req')
    if kept and kept ~= ARGV[i + 6] then return {'other', ARGV[i]} end
  end
  if not known_as(ARGV[i], members) then
    jobs = jobs + math.max(1, members)
    bytes = bytes + #ARGV[i + 5]
  end
end
if jobs > 0 and call('ZCARD', queue_key(run, c.cls)) + jobs > tonumber(ARGV[12]) then
  return {'full', 'queue of run ' .. run .. ' holds its most of ' .. ARGV[12] .. ' waiting jobs', 1000}
end
local full = jobs > 0 and memory_refusal(bytes + jobs * c.res)
if full then return {'full', full, 2000} end
call('SADD', P .. 'classes', c.cls)
call('SET', template_key(run, c.tpl), ARGV[4], 'PX', c.wall_ms + c.ttl_ms)
local out = {}
for i = 16, #ARGV, 7 do
  local unit, members = ARGV[i], tonumber(ARGV[i + 1])
  local known = known_as(unit, members)
  if not known then
    accept_unit(c, unit, members, ARGV[i + 5], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    if ARGV[i + 6] ~= '' then call('HSET', job_key(unit), 'req', ARGV[i + 6]) end
  end
  out[#out + 1] = known or 'ok'
end
admit(c.cls, tonumber(ARGV[13]))
return out
