#!lua flags=allow-oom
-- Delayed retries that are due by Redis time become claimable. One that cannot move (the key of its stream is something else by now) is tried
-- again later and does not keep the others waiting.
-- ARGV: most
-- Returns {looked at, ms until the next or -1, what kept some from moving or ''}.
local AGAIN_MS = 5000
local stuck = ''
local function move(job)
  local h, usable = job_hash(job, 'st', 'stage', 'run', 'grp', 'n', 'task', 'cls', 'att', 'node')
  if h.st == 'delayed' then make_ready(job, h, h.stage, lane_of(h, h.stage)) end
  call('ZREM', P .. 'z:delay', job)
  if not h.st then bury(job, usable and LOST_HASH or UNUSABLE) end
end
local due = call('ZRANGEBYSCORE', P .. 'z:delay', '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[1]))
for _, job in ipairs(due) do
  local ok, problem = pcall(move, job)
  if not ok then
    stuck = job .. ': ' .. words_of(problem)
    call('ZADD', P .. 'z:delay', NOW + AGAIN_MS, job)
  end
end
local next = call('ZRANGE', P .. 'z:delay', 0, 0, 'WITHSCORES')
return {#due, #next > 0 and math.max(0, tonumber(next[2]) - NOW) or -1, stuck}
