#!lua flags=allow-oom
-- Open units of a run whose entry is in no stream (a stream was deleted, a replica went back in time) become claimable again, uncounted; a worker
-- that still works on one is fenced. Open jobs whose hash is gone or of another type end as dead letters. What stands only in a list that others
-- share, and was lost with it, is put there again: wall deadlines, the run's place among those that have waiting jobs, a group whose members all
-- reported and that could not be closed then. What was cancelled, by somebody who came no further than the mark, ends.
-- ARGV: run, cursor, most
-- Returns {next cursor ('0' = done), jobs put back}.
local run = ARGV[1]
local scan = call('ZSCAN', open_key(run), ARGV[2], 'COUNT', tonumber(ARGV[3]))
local back = 0
local CANCELS_A_CALL, cancels = 256, 0 -- the others next time
local function one(job)
  local h, usable = job_hash(job, 'st', 'stage', 'src', 'eid', 'att', 'own', 'run', 'grp', 'n', 'task', 'cls', 'node', 'dl', 'cx', 'inc')
  if h.dl and h.st ~= 'done' and h.st ~= 'awaiting' then call('ZADD', P .. 'z:deadline', 'NX', h.dl, job) end
  local cx = h.st and h.st ~= 'done' and cancels < CANCELS_A_CALL and cancel_of(h)
  if not h.st then
    bury(job, usable and LOST_HASH or UNUSABLE)
  elseif cx then
    cancels = cancels + 1
    cancel_job(job, cx)
  elseif h.st == 'ready' or h.st == 'running' then
    if not is_there(P .. h.src, h.eid) then
      if h.st == 'running' then note_attempt(job, h.att, h.stage, 'lost', 'Redis lost its entry') end
      requeue(job, h, retry_stage(h), 0)
      back = back + 1
    end
  elseif h.st == 'waiting' then
    local place = redis.pcall('ZSCORE', queue_key(run, h.cls), job)
    if not place or type(place) == 'table' then
      make_ready(job, h, 'init')
      count(run_key(run), 'inflight', 1)
      back = back + 1
    end
  elseif h.st == 'awaiting' then
    local r, a = awaited(job)
    local due = r.rew == '' and math.min(tonumber(a.rdl or a.dl), tonumber(a.dl)) or tonumber(a.dl)
    call('ZADD', P .. 'z:deadline', 'NX', due, job)
    call('ZADD', awaiting_key(run), 'NX', due, job)
    keep(awaiting_key(run), math.max(1, call('PTTL', job_key(job))))
    if not is_there(results_key(run), a.arid) then
      h['b.run'] = call('HGET', job_key(job), 'b.run')
      call('HSET', job_key(job), 'arid', tell_awaiting(job, h, r, due))
    end
  elseif h.st == 'delayed' then
    if not call('ZSCORE', P .. 'z:delay', job) then
      requeue(job, h, h.stage, 0)
      back = back + 1
    end
  end
end
for i = 1, #scan[2], 2 do
  local unit = scan[2][i]
  local g = hash_or_nothing(group_key(unit), 'want', 'st', 'prompt', 'val')
  if g.want then
    for m = 0, tonumber(g.want) - 1 do one(unit .. '.' .. m) end
    local held = hash(group_key(unit), 'st', 'hdl', 'hooked')
    if held.st == 'open' and held.hdl and not held.hooked then call('ZADD', P .. 'z:held', 'NX', held.hdl, unit) end
    -- read again: the last of its members may have ended just now, and closed it
    if call('HGET', group_key(unit), 'st') == 'open' and call('HLEN', group_key(unit) .. ':m') >= tonumber(g.want) then close_group(unit, run, g.prompt, g.val) end
  elseif call('EXISTS', job_key(unit .. '.0')) == 1 then
    -- a group without its hash: its members end as they are, and who accounts for groups finds it gone
    call('ZREM', open_key(run), unit)
    call('ZADD', P .. 'z:closed', NOW, unit)
  else
    one(unit)
  end
end
for _, cls in ipairs(ARGV[2] == '0' and call('SMEMBERS', P .. 'classes') or {}) do
  local active = class_key(P .. 'active', cls)
  if call('EXISTS', queue_key(run, cls)) == 1 and not call('LPOS', active, run) then
    call('RPUSH', active, run)
    redis.pcall('HSET', run_key(run), class_key('listed', cls), 1)
  end
end
-- a run that expired, and has nothing open, is forgotten
if ARGV[2] == '0' and call('EXISTS', run_key(run), open_key(run)) == 0 then call('ZREM', P .. 'runs', run) end
return {scan[1], back}
