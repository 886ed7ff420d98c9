-- How work enters: units are accepted into the queue of their run, and waiting jobs move to INIT while that is short. Stands after endings.lua.
-- Waiting jobs of one run have two lanes in one sorted set: those of a validation have scores of a band above all others. While both have jobs they
-- take turns, job for job, also over calls, so that a validation waits behind no flood and is none. Takes at most `most` jobs out, in turn.
local VALIDATION_BAND, LANES_PART = 2^50, 2^49
local function take_waiting(rk, r, queue, most)
  local validation = r['val.serial'] and call('ZCOUNT', queue, LANES_PART, '+inf') or 0
  local training, ours, out = 0, {}, {}
  if validation > 0 then
    training = call('ZCARD', queue) - validation
    local share = most
    if training > 0 then
      share = math.floor(most / 2)
      if most % 2 == 1 then
        if r.lane ~= 'training' then share = share + 1 end
        call('HSET', rk, 'lane', r.lane ~= 'training' and 'training' or 'validation')
      end
      share = math.min(validation, math.max(share, most - training))
    end
    ours = share > 0 and call('ZRANGEBYSCORE', queue, LANES_PART, '+inf', 'LIMIT', 0, share) or {}
    in_pieces(ours, function(...) call('ZREM', queue, ...) end)
    most = math.min(training, most - #ours)
  end
  local others = most > 0 and call('ZPOPMIN', queue, most) or {}
  for i = 1, math.max(#ours, #others / 2) do
    out[#out + 1] = ours[i]
    out[#out + 1] = others[2 * i - 1]
  end
  return out
end

-- Weighted deficit round robin over the runs that have waiting jobs of one class: moves jobs to s:init while that is short.
-- A run's turn is a quantum of jobs by its weight. When the room ends within a turn, the run stays at the head with what is left of it.
-- A run whose queue is something else by now is held back like one that is paused.
local QUANTUM, LEAST_WEIGHT = 8, 0.01
admit = function(cls, window)
  local active, deficits = class_key(P .. 'active', cls), class_key(P .. 'deficit', cls)
  local turns = call('LLEN', active)
  if turns == 0 then return 0 end
  local stream = stage_stream('init', cls)
  local waiting = redis.pcall('XLEN', stream)
  if type(waiting) ~= 'number' then return 0 end
  if waiting > 0 then
    local pending = redis.pcall('XPENDING', stream, 'init')
    if type(pending) == 'table' and not pending.err then waiting = waiting - pending[1] end
  end
  local room, moved, held_back = window - waiting, 0, 0
  while room > 0 and turns > 0 and held_back < turns do
    local run = call('LINDEX', active, 0)
    local rk, queue = run_key(run), queue_key(run, cls)
    local r = hash_or_nothing(rk, 'weight', 'quota', 'inflight', 'paused', 'val.serial', 'lane')
    local quota, allowed = tonumber(r.quota or '0'), room
    if quota > 0 then
      local in_flight = tonumber(r.inflight or '0') + ((counted[rk] or {}).inflight or 0)
      allowed = math.min(room, quota - in_flight)
      local queued = redis.pcall('ZCARD', queue)
      if type(queued) == 'number' and in_flight + queued > quota then call('HSET', KEYS[1], 'window', window) end
    end
    if r.paused == '1' or type(redis.pcall('ZCARD', queue)) ~= 'number' then allowed = 0 end
    local left
    if allowed <= 0 then
      -- no credit builds up while a run is held back
      held_back, left = held_back + 1, 0
    else
      held_back, left = 0, tonumber(call('HGET', deficits, run) or '0')
      if left < 1 then left = left + QUANTUM * math.max(LEAST_WEIGHT, tonumber(r.weight or '1')) end
      local most, before = math.min(allowed, math.floor(left)), moved
      for _, job in ipairs(most > 0 and take_waiting(rk, r, queue, most) or {}) do
        local h, usable = job_hash(job, 'st', 'run', 'grp', 'n', 'task', 'cls', 'att')
        if h.st == 'waiting' then
          make_ready(job, h, 'init')
          count(rk, 'inflight', 1)
          room, moved, left = room - 1, moved + 1, left - 1
        elseif not usable or not h.st then
          bury(job, usable and LOST_HASH or UNUSABLE, true)
        end
      end
      if room > 0 and moved - before == allowed then left = 0 end
    end
    if call('EXISTS', queue) == 0 then
      call('LPOP', active)
      call('HDEL', deficits, run)
      redis.pcall('HDEL', rk, class_key('listed', cls))
      turns = turns - 1
    else
      call('HSET', deficits, run, left)
      if room > 0 or left < 1 then call('LMOVE', active, active, 'LEFT', 'RIGHT') end
    end
  end
  return moved
end

-- One unit (a whole group, or a single job when members is 0) enters the queue of its run.
-- c: run, inc, tpl, task, cls, pri, wall_ms, ttl_ms, mf, ml, res, recovery, val (serial of the validation it belongs to, or nil)
local function accept_unit(c, unit, members, prompt_body, prompt_id, draw, version)
  local keep_ms = c.wall_ms + c.ttl_ms
  call('SET', prompt_key(unit), prompt_body, 'PX', keep_ms)
  local rk, queue = run_key(c.run), queue_key(c.run, c.cls)
  local n = math.max(1, members)
  local last = call('HINCRBY', rk, 'seq', n)
  local base = (c.val and VALIDATION_BAND or 0) - c.pri * 1099511627776
  local queued, deadlines, stood = {}, {}, stood_still(c.run)
  for m = 0, n - 1 do
    local job = members == 0 and unit or (unit .. '.' .. m)
    local key = job_key(job)
    -- a hash this small is a list that is searched from its head: what scripts ask for most stands there
    call('HSET', key, 'st', 'waiting', 'att', 0, 'eid', '', 'src', '', 'stage', 'init', 'run', c.run, 'grp', members == 0 and '' or unit, 'n', m,
      'task', c.task, 'inc', c.inc, 'cls', c.cls, 't', NOW, 'tpl', c.tpl, 'draw', draw, 'dl', NOW + c.wall_ms, 'failed', 0, 'lost', 0,
      'res', c.res, 'mf', c.mf, 'ml', c.ml, 'recovery', c.recovery)
    if stood > 0 then call('HSET', key, 'stood', stood) end
    call('PEXPIRE', key, keep_ms)
    queued[#queued + 1] = base + last - n + 1 + m
    queued[#queued + 1] = job
    deadlines[#deadlines + 1] = NOW + c.wall_ms
    deadlines[#deadlines + 1] = job
  end
  if members > 0 then
    call('HSET', group_key(unit), 'run', c.run, 'inc', c.inc, 'prompt', prompt_id, 'draw', draw, 'want', n, 'st', 'open', 't', NOW, 'pv', version,
      'begun', 0, 'res', c.res)
    if c.val then call('HSET', group_key(unit), 'val', c.val) end
    if stood > 0 then call('HSET', group_key(unit), 'stood', stood) end
    call('PEXPIRE', group_key(unit), keep_ms)
  end
  call('ZADD', open_key(c.run), NOW, unit)
  in_pieces(queued, function(...) call('ZADD', queue, ...) end)
  in_pieces(deadlines, function(...) call('ZADD', P .. 'z:deadline', ...) end)
  for _, key in ipairs({rk, queue, open_key(c.run)}) do keep(key, keep_ms) end
  count(KEYS[1], 'reserved', c.res * n)
  count(rk, 'accepted', n)
  if call('HSETNX', rk, class_key('listed', c.cls), 1) == 1 then call('RPUSH', class_key(P .. 'active', c.cls), c.run) end
end

-- Why nothing may be accepted now: nil, or a reason. What is reserved for open jobs counts as used.
local function memory_refusal(more)
  local info = call('INFO', 'memory')
  local max = tonumber(string.match(info, 'maxmemory:(%d+)') or '0')
  if max == 0 then return nil end
  local used = tonumber(string.match(info, 'used_memory:(%d+)'))
  local reserved = math.max(0, tonumber(call('HGET', KEYS[1], 'reserved') or '0'))
  if used + reserved + more > 0.8 * max then
    return string.format('memory: %d MiB used and %d MiB reserved of %d MiB', used / 1048576, reserved / 1048576, max / 1048576)
  end
  return nil
end

local function was_done(run, unit)
  local ttl_days = 2
  for back = 0, ttl_days - 1 do
    if call('SISMEMBER', done_key(run, NOW - back * 86400000), unit) == 1 then return true end
  end
  return false
end
