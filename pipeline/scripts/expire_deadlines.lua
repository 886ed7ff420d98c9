#!lua flags=allow-oom
-- Jobs past their wall deadline end: at once when nobody holds them, by a cancel message otherwise. So do jobs that got no reward in time, and
-- groups whose hook did not report in time close with what they have.
-- The wall deadline of a job counts no time in which its run's deadlines stood still (stand_still.lua): it is worked out here, when its first date comes,
-- and the job gets the new date. Those for a reward or a hook from outside go on.
-- One that cannot end (the results of its run are something else by now) is tried again later and does not keep the others waiting.
-- ARGV: most
-- Returns {ended, marked, what kept some from ending or ''}.
if tonumber(call('HGET', P .. 'janitor', 'quiet_until') or '0') > NOW then return {0, 0, ''} end
local AGAIN_MS = 5000
local ended, marked, stuck = 0, {}, ''
local read = job_reader('run', 'dl', 'stood', 'st', 'rdl')
local runs = {}
-- nil, or when a job is to be looked at again, since its date has moved
local function moved_to(job)
  local h = read(job)
  if not h.dl or not h.run then return nil end
  local r = runs[h.run]
  if not r then
    local ms, stands = stood_still(h.run)
    r = {ms = ms, stands = stands}
    runs[h.run] = r
  end
  local by = r.ms - tonumber(h.stood or '0')
  if by <= 0 then return nil end
  local due = tonumber(h.dl) + by
  if h.st == 'awaiting' then due = math.min(due, tonumber(h.rdl or 'inf')) end
  if due <= NOW then return nil end
  return r.stands and math.max(due, NOW + AGAIN_MS) or due
end
for _, job in ipairs(call('ZRANGEBYSCORE', P .. 'z:deadline', '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[1]))) do
  local later = moved_to(job)
  local ok, found = true, 'later'
  if not later then ok, found = pcall(cancel_job, job, 'deadline') end
  if later then
    call('ZADD', P .. 'z:deadline', later, job)
  elseif not ok then
    stuck = job .. ': ' .. words_of(found)
    call('ZADD', P .. 'z:deadline', NOW + AGAIN_MS, job)
  elseif found == 'running' then
    marked[#marked + 1] = job
    call('ZADD', P .. 'z:deadline', NOW + AGAIN_MS, job)
  else
    ended = ended + 1
    call('ZREM', P .. 'z:deadline', job)
  end
end
local function close_held(grp)
  local g = hash_or_nothing(group_key(grp), 'run', 'want', 'st')
  if g.st == 'open' then
    call('HSET', group_key(grp), 'hooked', 'deadline')
    for m = 0, tonumber(g.want) - 1 do
      local job = grp .. '.' .. m
      local h = job_hash(job, 'st', 'run', 'grp', 'n', 'task', 'att', 'stage')
      if h.st == 'awaiting' then
        local r, a = awaited(job)
        if r.rew == '' then finish_missing(job, h, r, a) else finish_awaiting(job, h, r, a) end
        ended = ended + 1
      end
    end
    count(run_key(g.run), 'hooks.missing', 1)
  end
  end_hold(grp, g.run or string.match(grp, '^[^.]*'))
end
for _, grp in ipairs(call('ZRANGEBYSCORE', P .. 'z:held', '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[1]))) do
  local ok, found = pcall(close_held, grp)
  if not ok then
    stuck = grp .. ': ' .. words_of(found)
    call('ZADD', P .. 'z:held', NOW + AGAIN_MS, grp)
  end
end
if #marked > 0 then tell_cancel('job', 'deadline', marked) end
return {ended, #marked, stuck}
