#!lua flags=allow-oom
-- Delayed retries that are due by Redis time become claimable.
-- ARGV: most
-- Returns {promoted, ms until the next or -1}.
local due = call('ZRANGEBYSCORE', P .. 'z:delay', '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[1]))
for _, job in ipairs(due) do
  local h, usable = job_hash(job, 'st', 'stage', 'run', 'grp', 'n', 'task', 'cls', 'att', 'node')
  if h.st == 'delayed' then make_ready(job, h, h.stage, lane_of(h, h.stage)) end
  call('ZREM', P .. 'z:delay', job)
  if not h.st then bury(job, usable and LOST_HASH or UNUSABLE) end
end
local next = call('ZRANGE', P .. 'z:delay', 0, 0, 'WITHSCORES')
return {#due, #next > 0 and math.max(0, tonumber(next[2]) - NOW) or -1}
