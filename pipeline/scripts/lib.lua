-- Common to every script, which gets what it uses of it (sources.py); key names mirror pipeline/keys.py (a test compares them).
-- KEYS[1] is always <tag>:meta of the shard. All keys of a shard share its hash tag, so a script stays in one slot.
local P = string.sub(KEYS[1], 1, -5)
local call = redis.call
local TIME = call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
local STAGES = {'init', 'run', 'eval'}
local NEXT = {init = 'run', run = 'eval'}

local function stage_stream(stage, cls, node)
  if node and node ~= '' then return P .. 's:' .. stage .. ':@' .. node end
  if stage == 'init' and cls and cls ~= '' and cls ~= 'none' then return P .. 's:init:' .. cls end
  return P .. 's:' .. stage
end
local function class_key(base, cls)
  if cls and cls ~= '' and cls ~= 'none' then return base .. ':' .. cls end
  return base
end
local function job_key(job) return P .. 'j:' .. job end
local function body_key(job, att, stage) return P .. 'b:' .. job .. ':' .. att .. ':' .. stage end
local function prompt_key(unit) return P .. 'b:' .. unit .. ':prompt' end
local function template_key(run, tpl) return P .. 'tp:' .. run .. ':' .. tpl end
local function group_key(grp) return P .. 'g:' .. grp end
local function run_key(run) return P .. 'r:' .. run end
local function queue_key(run, cls) return class_key(P .. 'q:' .. run, cls) end
local function results_key(run) return P .. 's:results:' .. run end
local function open_key(run) return P .. 'open:' .. run end
local function done_key(run, at_ms) return P .. 'done:' .. run .. ':' .. math.floor(at_ms / 86400000) end
local function step_key(run, k) return P .. 'st:' .. run .. ':' .. k end

local REWARD_MAXLEN, CANCEL_MAXLEN, DEAD_MAXLEN = 100000, 20000, 100000

-- Hash as a table: h(key, 'a', 'b') -> {a=..., b=...}; absent fields are nil.
local function hash(key, ...)
  local names, values, out = {...}, call('HMGET', key, ...), {}
  for i = 1, #names do if values[i] then out[names[i]] = values[i] end end
  return out
end

-- The same for a key that others share a script with: something else in its place (WRONGTYPE) reads as a key that is gone, and is told by whoever
-- needs that key. One broken run must not stop admission, renewals and settling of all the others.
local function hash_or_nothing(key, ...)
  local ok, found = pcall(hash, key, ...)
  return ok and found or {}
end

-- An error that was caught, as text: one of a Redis command is a table.
local function words_of(problem) return type(problem) == 'table' and problem.err or tostring(problem) end

-- A name belongs to one boot of one process. A missing lock (it ran out while Redis or the worker was away) is taken again.
local function holds_name(consumer, boot, lock_ms)
  local key = P .. 'w:' .. consumer
  local held = call('HGET', key, 'boot')
  if held and held ~= boot then return false end
  if not held then
    call('HSET', key, 'boot', boot, 'beat', NOW)
    call('PEXPIRE', key, lock_ms)
  end
  return true
end

-- What a batch does to shared keys is gathered and done once at the end of the script (`settle_up`, called by the loader after the body, also when
-- the body failed half way): a call into the server costs more than its work. Whoever reads such a key within the same script reads it as it was.
-- Each kind of thing that is gathered stands beside what is done with it; doing one may gather more.
local gathered = {}
local function gather(finish)
  local things = {}
  gathered[#gathered + 1] = {things, finish}
  return things
end
local function settle_up()
  local again
  repeat
    again = false
    for _, pair in ipairs(gathered) do
      local things, taken = pair[1], {}
      if next(things) then
        for k, v in pairs(things) do taken[k] = v end
        for k in pairs(taken) do things[k] = nil end
        pair[2](taken)
        again = true
      end
    end
  until not again
end
-- Lua passes some thousand values to a call at most.
local MOST_VALUES = 2000
local function in_pieces(values, f)
  for i = 1, #values, MOST_VALUES do f(unpack(values, i, math.min(#values, i + MOST_VALUES - 1))) end
end

local dropped = gather(function(streams)
  for stream, ids in pairs(streams) do
    in_pieces(ids, function(...) redis.pcall('XACK', stream, ids.group, ...) redis.pcall('XDEL', stream, ...) end)
  end
end)
local function drop_entry(stream, group, eid)
  if eid and eid ~= '' then
    local d = dropped[stream] or {group = group}
    d[#d + 1] = eid
    dropped[stream] = d
  end
end

local counted = gather(function(keys)
  for key, fields in pairs(keys) do
    -- a run or group that expired is not made again by a late count; figures never stop what they count
    if key == KEYS[1] or call('EXISTS', key) == 1 then
      for field, by in pairs(fields) do if by ~= 0 then redis.pcall('HINCRBY', key, field, by) end end
    end
  end
end)
local function count(key, field, by)
  local c = counted[key] or {}
  c[field] = (c[field] or 0) + by
  counted[key] = c
end

local unlinked = gather(function(keys) in_pieces(keys, function(...) call('UNLINK', ...) end) end)
local function unlink(key) unlinked[#unlinked + 1] = key end

-- Jobs that have ended have no deadline.
local undated = gather(function(jobs) in_pieces(jobs, function(...) redis.pcall('ZREM', P .. 'z:deadline', ...) end) end)

-- The expiry of a key that many share only grows: `ms` from now, at least.
local kept = gather(function(keys)
  for key, ms in pairs(keys) do
    if call('PTTL', key) < ms then call('PEXPIRE', key, ms) end
  end
end)
local function keep(key, ms) kept[key] = math.max(kept[key] or 0, ms) end

-- Runs in which jobs ended: their results live on, and in a run that is held back by its quota the end of one job admits the next.
local admit
local told = gather(function(runs)
  for run in pairs(runs) do
    local r = hash_or_nothing(P .. 'r:' .. run, 'ttl_ms', 'quota')
    keep(P .. 's:results:' .. run, tonumber(r.ttl_ms or '604800000'))
    if tonumber(r.quota or '0') > 0 then
      local window = tonumber(call('HGET', KEYS[1], 'window') or '0')
      for _, cls in ipairs(call('SMEMBERS', P .. 'classes')) do admit(cls, window) end
    end
  end
end)

local end_awaiting, hold_group, end_hold -- awaiting.lua

-- A job becomes claimable: one new entry with a readable header (its stage is the stream's, its time the entry id's). More fields for the job's hash
-- may follow. What can fail (a stream key of another type) comes first: then nothing is changed.
local function make_ready(job, h, stage, node, ...)
  local stream = stage_stream(stage, h.cls, node)
  local eid = call('XADD', stream, '*', 'job', job, 'run', h.run, 'grp', h.grp or '', 'n', h.n or '0', 'task', h.task or '',
    'att', h.att or '0')
  call('HSET', job_key(job), 'st', 'ready', 'stage', stage, 'src', string.sub(stream, #P + 1), 'eid', eid, ...)
  return eid
end

-- Only RUN has lanes: an environment that one node has. EVAL starts from a clean one and runs anywhere.
local function lane_of(h, stage) return stage == 'run' and h.node or nil end

-- Back to the queue of a stage, now or after a delay. Going back gives up what was made there and later; before INIT that is the environment too.
local PLACE = {init = 1, run = 2, eval = 3}
local function requeue(job, h, stage, delay_ms)
  local node = stage ~= 'init' and h.node or nil
  if delay_ms > 0 then
    call('ZADD', P .. 'z:delay', NOW + delay_ms, job)
    call('HSET', job_key(job), 'st', 'delayed', 'stage', stage, 'src', '', 'eid', '')
  else
    make_ready(job, h, stage, lane_of({node = node}, stage))
  end
  if PLACE[stage] < PLACE[h.stage] then
    local b = hash(job_key(job), 'b.init', 'b.run', 'salvaged')
    if b.salvaged then unlink(body_key(job, b.salvaged, 'turns')) end
    if b['b.run'] then unlink(body_key(job, b['b.run'], 'run')) end
    call('HDEL', job_key(job), 'b.run', 'salvaged')
    if stage == 'init' then
      if b['b.init'] then unlink(body_key(job, b['b.init'], 'init')) end
      call('HDEL', job_key(job), 'b.init', 'node', 'epoch')
    end
  end
  h.node = node
end

-- Where a lost or failed attempt begins again: an environment that only one node has is made anew.
local function retry_stage(h)
  if h.stage == 'run' and h.node and h.node ~= '' then return 'init' end
  return h.stage
end

local function is_there(stream, eid)
  local found = redis.pcall('XRANGE', stream, eid, eid)
  return found.err ~= nil or #found > 0
end

-- A wake-up is no record: what it would tell stands elsewhere, so it never stops anything. One that failed is counted, and the janitor says so.
local function wake_up(...)
  local told = redis.pcall('XADD', P .. 's:reward', 'MAXLEN', '~', REWARD_MAXLEN, '*', ...)
  if type(told) == 'table' and told.err then count(KEYS[1], 'wake_ups_lost', 1) end
end

local function close_group(grp, run, prompt, val)
  if val then
    -- all of a validation's groups are wanted and nobody judges them: its trainer puts their records together
    call('HSET', group_key(grp), 'st', 'closed', 'closed', NOW)
    count(run_key(run), 'groups.validation', 1)
    redis.pcall('ZREM', open_key(run), grp)
    return
  end
  -- the record of closed groups comes first: when it cannot be written the group stays open, and reconcile closes it
  call('ZADD', P .. 'z:closed', NOW, grp)
  call('HSET', group_key(grp), 'st', 'closed', 'closed', NOW)
  redis.pcall('ZREM', open_key(run), grp)
  wake_up('kind', 'group_closed', 'run', run, 'grp', grp, 'prompt', prompt or '')
end

-- One line a member, the first one stands; the last one closes the group. A group that is gone, or is something else by now, takes no lines.
local groups = {}
local function add_member(grp, run, n, line)
  local key = group_key(grp)
  local g = groups[grp] or hash_or_nothing(key, 'want', 'st', 'prompt', 'val', 'aw')
  groups[grp] = g
  if not g.st or call('HSETNX', key .. ':m', n, line) == 0 then return end
  local have = call('HLEN', key .. ':m')
  if have == 1 then call('PEXPIRE', key .. ':m', math.max(1, call('PTTL', key))) end
  if g.aw and call('HDEL', key, 'aw.' .. n) == 1 then g.aw = call('HINCRBY', key, 'aw', -1) end
  if g.st == 'open' and have >= tonumber(g.want) then
    close_group(grp, run, g.prompt, g.val)
    g.st = 'closed'
    if g.aw then end_hold(grp, run) end
  elseif g.st == 'open' and g.aw then
    hold_group(grp, run, g, have)
  end
end

-- How a cancelled job ends: the deadline has an outcome of its own.
local function outcome_of(reason) return reason == 'deadline' and 'expired' or 'cancelled' end

-- A field of a member's line, whose fields are joined by bars.
local function plain(text)
  if not text or not string.find(text, '|', 1, true) then return text or '' end
  return (string.gsub(text, '|', '/'))
end

-- Promise 1 and 3: the terminal record, the fan-in into the group and the counters are one step.
-- h: from `hash` with st, stage, run, grp, n, task, att; with `loaded` set also what `TERMINAL_FIELDS` names.
-- r: out, why, rew, comps, stop, sampled, total, turns, v0, v1 (all text). More fields for the job's hash may follow.
local TERMINAL_FIELDS = {'b.run', 'b.eval', 'ms.init', 'ms.run', 'ms.eval', 't', 'res', 'inc', 'tok'}
local function terminal(job, h, r, ...)
  local key, run, b = job_key(job), h.run, h
  if not h.loaded then b = hash(key, unpack(TERMINAL_FIELDS)) end
  local grp = h.grp or ''
  -- what it sampled over all its attempts: journalled turns, and at least what its trajectory has
  local sampled = tonumber(r.sampled or '0')
  local spent = math.max(sampled, tonumber(b.tok or '0'))
  local rid = call('XADD', results_key(run), '*', 'kind', 'job', 'job', job, 'run', run, 'grp', grp, 'n', h.n or '0', 'task', h.task or '',
    'out', r.out, 'why', r.why or '', 'rew', r.rew or '', 'comps', r.comps or '', 'stop', r.stop or '', 'att', h.att or '0',
    'ra', b['b.run'] or '0', 'ea', b['b.eval'] or '0', 'sampled', r.sampled or '0', 'total', r.total or '0', 'turns', r.turns or '0',
    'v0', r.v0 or '', 'v1', r.v1 or '', 'init_ms', b['ms.init'] or '0', 'run_ms', b['ms.run'] or '0', 'eval_ms', b['ms.eval'] or '0',
    'all_ms', NOW - tonumber(b.t or NOW), 'inc', b.inc or '0', 'stage', h.stage or '', 'spent', spent)
  call('HSET', key, 'st', 'done', 'out', r.out, 'rid', rid, 'eid', '', 'done', NOW, ...)
  if (r.why or '') ~= '' then call('HSET', key, 'why', r.why) end
  local rk = run_key(run)
  told[run] = true
  undated[#undated + 1] = job
  count(rk, 'inflight', -1)
  count(rk, 'out.' .. r.out, 1)
  if b.res then count(KEYS[1], 'reserved', -tonumber(b.res)) end
  if grp == '' then
    redis.pcall('ZREM', open_key(run), job)
    count(rk, 'tok.outside', spent)
  else
    add_member(grp, run, h.n, table.concat({r.out, r.rew or '', plain(r.stop), r.sampled or '0', r.total or '0', r.turns or '0', h.att or '0',
      plain(r.v0), plain(r.v1), rid, plain(r.why), r.comps or ''}, '|'))
    local g = groups[grp]
    if g.val then
      count(rk, 'tok.outside', spent)
    elseif g.st and spent > sampled then
      call('HSET', group_key(grp), 'more.' .. h.n, spent - sampled)
    end
  end
  return rid
end

-- A job whose budget is used up, or that no retry can help: terminal record first, then a line for the people who look at failures.
local function tell_dead(...) redis.pcall('XADD', P .. 's:dead', 'MAXLEN', '~', DEAD_MAXLEN, '*', ...) end
local function dead_letter(job, h, why, ...)
  local rid = terminal(job, h, {out = 'infra_failure', why = why})
  tell_dead('job', job, 'run', h.run, 'grp', h.grp or '', 'stage', h.stage or '', 'att', h.att or '0', 'failed', h.failed or '0',
    'lost', h.lost or '0', 'why', why, 'rid', rid, ...)
end

local LOST_HASH, UNUSABLE = 'its hash is gone', 'its key holds something else'

-- The hash of a job, and whether its key can be used at all: a key of another type makes one job unusable, not the script.
local function job_hash(job, ...)
  local ok, h = pcall(hash, job_key(job), ...)
  if ok then return h, true end
  return {}, false
end

-- The same for scripts that read many jobs: made once for its fields. The table it answers is the same each time and good until the next job.
local function job_reader(...)
  local names, h = {...}, {}
  return function(job)
    local values = redis.pcall('HMGET', job_key(job), unpack(names))
    if values.err then return {}, false end
    for i, name in ipairs(names) do h[name] = values[i] or nil end
    return h, true
  end
end

-- A job whose hash is gone, or is something else, can never report. It ends here as a dead letter, so that its group closes and its run's
-- counters hold. What it was is read from its id and its group. False when it was no open job of anybody.
local function bury(job, why, was_waiting)
  local run = string.match(job, '^[^.]*')
  local grp, n = string.match(job, '^(.*)%.(%d+)$')
  local g = grp and hash_or_nothing(group_key(grp), 'st', 'want', 'res', 'inc') or {}
  if g.st then
    if g.st ~= 'open' or tonumber(n) >= tonumber(g.want) or call('HEXISTS', group_key(grp) .. ':m', n) == 1 then return false end
  elseif not call('ZSCORE', open_key(run), job) or call('EXISTS', group_key(job)) == 1 then
    return false -- nobody's, or a group whose id was taken for a job's
  end
  for _, cls in ipairs(call('SMEMBERS', P .. 'classes')) do
    if redis.pcall('ZREM', queue_key(run, cls), job) == 1 then was_waiting = true end
  end
  if redis.pcall('ZREM', P .. 'aw:' .. run, job) == 1 then was_waiting = true end
  if was_waiting then count(run_key(run), 'inflight', 1) end
  call('ZREM', P .. 'z:delay', job)
  call('UNLINK', job_key(job))
  dead_letter(job, {run = run, grp = g.st and grp or '', n = g.st and n or '0', inc = g.inc, res = g.res, loaded = true}, why)
  call('PEXPIRE', job_key(job), tonumber(hash_or_nothing(run_key(run), 'ttl_ms').ttl_ms or '604800000'))
  return true
end

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
  local queued, deadlines = {}, {}
  for m = 0, n - 1 do
    local job = members == 0 and unit or (unit .. '.' .. m)
    local key = job_key(job)
    -- a hash this small is a list that is searched from its head: what scripts ask for most stands there
    call('HSET', key, 'st', 'waiting', 'att', 0, 'eid', '', 'src', '', 'stage', 'init', 'run', c.run, 'grp', members == 0 and '' or unit, 'n', m,
      'task', c.task, 'inc', c.inc, 'cls', c.cls, 't', NOW, 'tpl', c.tpl, 'draw', draw, 'dl', NOW + c.wall_ms, 'failed', 0, 'lost', 0,
      'res', c.res, 'mf', c.mf, 'ml', c.ml, 'recovery', c.recovery)
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

-- nil, or why a trainer's call is refused.
local function run_refusal(run, inc)
  local r = hash(run_key(run), 'st', 'inc', 'cx', 'why')
  if not r.st then return {'closed', 'unknown'} end
  if r.inc ~= inc then return {'stale', r.inc} end
  if r.st ~= 'open' then return {'closed', r.why and r.st .. ' (' .. r.why .. ')' or r.st} end
  if r.cx then return {'closed', 'cancelled (' .. r.cx .. ')'} end
  return nil
end

local function was_done(run, unit)
  local ttl_days = 2
  for back = 0, ttl_days - 1 do
    if call('SISMEMBER', done_key(run, NOW - back * 86400000), unit) == 1 then return true end
  end
  return false
end

-- nil, or why the jobs of an incarnation are cancelled with their run. A run that a new trainer took over keeps the cancel of its jobs from before.
local run_cx = {}
local function cancel_of_run(run, inc)
  local r = run_cx[run] or hash_or_nothing(run_key(run), 'cx', 'cx.inc', 'cx.why')
  run_cx[run] = r
  if r.cx then return r.cx end
  if r['cx.inc'] and tonumber(inc or '0') <= tonumber(r['cx.inc']) then return r['cx.why'] end
  return nil
end

-- nil, or why a group was cancelled. Its mark stands before its members have theirs.
local group_cx = {}
local function cancel_of_group(grp)
  if (grp or '') == '' then return nil end
  if group_cx[grp] == nil then group_cx[grp] = hash_or_nothing(group_key(grp), 'cx').cx or false end
  return group_cx[grp] or nil
end

-- nil, or why a job was cancelled, wherever the mark stands. h: cx, grp, run, inc.
local function cancel_of(h) return h.cx or cancel_of_group(h.grp) or cancel_of_run(h.run, h.inc) end

-- Ends one job that nobody holds, or marks one that a worker holds. Returns what was found.
local function cancel_job(job, reason)
  local key = job_key(job)
  local h, usable = job_hash(job, 'st', 'run', 'grp', 'n', 'task', 'cls', 'att', 'stage', 'src', 'eid', 'cx', 'node')
  if not h.st then
    return bury(job, usable and LOST_HASH or UNUSABLE) and 'settled' or 'unknown'
  end
  if h.st == 'done' then return 'done' end
  -- held by a worker, unless its entry is gone: then nobody's lease can run out, and nobody else would end it
  if h.st == 'running' and is_there(P .. h.src, h.eid) then
    if not h.cx then call('HSET', key, 'cx', reason) end
    return 'running'
  end
  if h.st == 'awaiting' then
    end_awaiting(job, h, h.cx or reason)
    return 'settled'
  end
  terminal(job, h, {out = outcome_of(h.cx or reason), why = h.cx or reason}, 'cx', h.cx or reason)
  if h.st == 'waiting' then
    redis.pcall('ZREM', queue_key(h.run, h.cls), job)
    count(run_key(h.run), 'inflight', 1)
  elseif h.st == 'ready' then
    drop_entry(P .. h.src, h.stage, h.eid)
  elseif h.st == 'delayed' then
    call('ZREM', P .. 'z:delay', job)
  end
  return 'settled'
end
