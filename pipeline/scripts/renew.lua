#!lua flags=allow-oom
-- The leases of one worker process live on; answers whether each job is still its own, and whether it was cancelled. A job whose entry is gone
-- is put back, uncounted; one whose group is gone keeps its worker. Who holds the name is said each time: a lock that ran out comes back whole.
-- ARGV: stage, consumer, boot, lock_ms, node, slots, pid, version, skew_ms (its clock less this one), why it claims nothing ('' = it does), then per job: stream, entry id, job, attempt
-- Returns {name held: 1 or 0, then per job: 1 renewed, 0 lost, or the cancel reason}.
local stage, consumer, boot = ARGV[1], ARGV[2], ARGV[3]
local own = consumer .. '#' .. boot
if not holds_name(consumer, boot, tonumber(ARGV[4])) then
  local out = {0}
  for i = 11, #ARGV, 4 do out[#out + 1] = 0 end
  return out
end
call('PEXPIRE', P .. 'w:' .. consumer, tonumber(ARGV[4]))
call('HSET', P .. 'w:' .. consumer, 'beat', NOW, 'stage', stage, 'node', ARGV[5], 'slots', ARGV[6], 'pid', ARGV[7], 'version', ARGV[8],
  'skew_ms', ARGV[9], 'idle_why', ARGV[10])
local out, mine = {1}, {}
local read = job_reader('st', 'eid', 'att', 'run', 'grp', 'inc', 'cx', 'own')
for i = 11, #ARGV, 4 do
  local stream, eid, job, att = P .. ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local h = read(job)
  if h.st == 'running' and h.eid == eid and h.att == att and h.own == own then
    mine[stream] = mine[stream] or {jobs = {}, places = {}}
    local m = mine[stream]
    m[#m + 1], m.jobs[eid], m.places[eid] = eid, job, #out + 1
    out[#out + 1] = cancel_of(h) or 1
  else
    out[#out + 1] = 0
  end
end
for stream, m in pairs(mine) do
  -- FORCE: a group that was made again has forgotten who holds what; an entry that was delivered again to another comes home
  for _, word in ipairs({'IDLE', 0, 'FORCE', 'JUSTID'}) do m[#m + 1] = word end
  local claimed = redis.pcall('XCLAIM', stream, stage, consumer, 0, unpack(m))
  for _, eid in ipairs(claimed) do m.jobs[eid] = nil end
  for eid, job in pairs(m.jobs) do
    if not is_there(stream, eid) then
      -- the stream was deleted: no lease of this entry can run out any more, so the job goes back here
      local whole = job_hash(job, 'stage', 'run', 'grp', 'n', 'task', 'att', 'cls', 'node')
      pcall(requeue, job, whole, retry_stage(whole), 0)
      out[m.places[eid]] = 0
    end
  end
end
return out
