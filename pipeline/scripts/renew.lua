#!lua flags=allow-oom
-- The leases of one worker process live on; answers whether each job is still its own, and whether it was cancelled.
-- ARGV: stage, consumer, boot, lock_ms, then per job: stream, entry id, job, attempt
-- Returns {name held: 1 or 0, then per job: 1 renewed, 0 lost, or the cancel reason}.
local stage, consumer, boot = ARGV[1], ARGV[2], ARGV[3]
local own = consumer .. '#' .. boot
if not holds_name(consumer, boot, tonumber(ARGV[4])) then
  local out = {0}
  for i = 5, #ARGV, 4 do out[#out + 1] = 0 end
  return out
end
call('PEXPIRE', P .. 'w:' .. consumer, tonumber(ARGV[4]))
call('HSET', P .. 'w:' .. consumer, 'beat', NOW)
local out, run_cx = {1}, {}
for i = 5, #ARGV, 4 do
  local stream, eid, att = P .. ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local h = hash(job_key(ARGV[i + 2]), 'eid', 'att', 'own', 'cx', 'run', 'st')
  if h.st == 'running' and h.eid == eid and h.att == att and h.own == own then
    local kept = redis.pcall('XCLAIM', stream, stage, consumer, 0, eid, 'IDLE', 0, 'JUSTID')
    if run_cx[h.run] == nil then run_cx[h.run] = call('HGET', run_key(h.run), 'cx') or false end
    if type(kept) ~= 'table' or kept.err or #kept == 0 then
      out[#out + 1] = 0
    else
      out[#out + 1] = h.cx or run_cx[h.run] or 1
    end
  else
    out[#out + 1] = 0
  end
end
return out
