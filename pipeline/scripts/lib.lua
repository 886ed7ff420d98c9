-- Common to every script. Prepended by pipeline/scripts/__init__.py; key names mirror pipeline/keys.py (a test compares them).
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

-- What a batch does to shared keys is gathered and done once at the end of the script (`settle_up`, called by the loader after the body):
-- a call into the server costs more than its work. Nothing here is read again within the same script.
local dropped, counted, unlinked, undated, told = {}, {}, {}, {}, {}
local function drop_entry(stream, group, eid)
  if eid and eid ~= '' then
    local d = dropped[stream] or {group = group}
    d[#d + 1] = eid
    dropped[stream] = d
  end
end
local function count(key, field, by)
  local c = counted[key] or {}
  c[field] = (c[field] or 0) + by
  counted[key] = c
end
local function unlink(key) unlinked[#unlinked + 1] = key end
local function settle_up()
  for stream, d in pairs(dropped) do
    redis.pcall('XACK', stream, d.group, unpack(d))
    redis.pcall('XDEL', stream, unpack(d))
  end
  for key, fields in pairs(counted) do
    for field, by in pairs(fields) do if by ~= 0 then call('HINCRBY', key, field, by) end end
  end
  if #unlinked > 0 then call('UNLINK', unpack(unlinked)) end
  if #undated > 0 then call('ZREM', P .. 'z:deadline', unpack(undated)) end
  for run in pairs(told) do call('PEXPIRE', P .. 's:results:' .. run, tonumber(call('HGET', P .. 'r:' .. run, 'ttl_ms') or '604800000')) end
  dropped, counted, unlinked, undated, told = {}, {}, {}, {}, {}
end

-- A job becomes claimable: one new entry with a readable header. More fields for the job's hash may follow.
local function make_ready(job, h, stage, node, ...)
  local stream = stage_stream(stage, h.cls, node)
  local eid = call('XADD', stream, '*', 'job', job, 'run', h.run, 'grp', h.grp or '', 'n', h.n or '0', 'task', h.task or '',
    'stage', stage, 'att', h.att or '0', 'ts', NOW)
  call('HSET', job_key(job), 'st', 'ready', 'stage', stage, 'src', string.sub(stream, #P + 1), 'eid', eid, 'own', '', ...)
  return eid
end

-- Back to the queue of a stage, now or after a delay. Going back to INIT gives up the environment and what was made in it.
local function requeue(job, h, stage, delay_ms)
  if stage == 'init' and h.stage ~= 'init' then
    for _, name in ipairs({'b.init', 'b.run'}) do
      local att = call('HGET', job_key(job), name)
      if att then unlink(body_key(job, att, string.sub(name, 3))) end
    end
    call('HDEL', job_key(job), 'b.init', 'b.run', 'node', 'epoch')
    h.node = nil
  end
  if delay_ms > 0 then
    call('ZADD', P .. 'z:delay', NOW + delay_ms, job)
    call('HSET', job_key(job), 'st', 'delayed', 'stage', stage, 'src', '', 'eid', '', 'own', '')
  else
    make_ready(job, h, stage, stage ~= 'init' and h.node or nil)
  end
end

-- Where a lost or failed attempt begins again: an environment that only one node has is made anew.
local function retry_stage(h)
  if h.stage == 'run' and h.node and h.node ~= '' then return 'init' end
  return h.stage
end

-- Called after a member was added: the first one gives the member hash its expiry, the last one closes the group.
local function close_group_if_full(grp, run)
  local n = call('HLEN', group_key(grp) .. ':m')
  local g = hash(group_key(grp), 'want', 'st', 'prompt')
  if g.st ~= 'open' then return end
  if n == 1 then call('PEXPIRE', group_key(grp) .. ':m', math.max(1, call('PTTL', group_key(grp)))) end
  if n < tonumber(g.want) then return end
  call('HSET', group_key(grp), 'st', 'closed', 'closed', NOW)
  call('ZADD', P .. 'z:closed', NOW, grp)
  call('ZREM', open_key(run), grp)
  call('XADD', P .. 's:reward', 'MAXLEN', '~', REWARD_MAXLEN, '*', 'kind', 'group_closed', 'run', run, 'grp', grp, 'prompt', g.prompt or '')
end

-- Promise 1 and 3: the terminal record, the fan-in into the group and the counters are one step.
-- h: from `hash` with st, stage, run, grp, n, task, att; with `loaded` set also what `TERMINAL_FIELDS` names.
-- r: out, why, rew, comps, stop, sampled, total, turns, v0, v1 (all text). More fields for the job's hash may follow.
local TERMINAL_FIELDS = {'b.run', 'b.eval', 'ms.init', 'ms.run', 'ms.eval', 't', 'res', 'inc'}
local function terminal(job, h, r, ...)
  local key, run, b = job_key(job), h.run, h
  if not h.loaded then b = hash(key, unpack(TERMINAL_FIELDS)) end
  local grp = h.grp or ''
  local rid = call('XADD', results_key(run), '*', 'kind', 'job', 'job', job, 'run', run, 'grp', grp, 'n', h.n or '0', 'task', h.task or '',
    'out', r.out, 'why', r.why or '', 'rew', r.rew or '', 'comps', r.comps or '', 'stop', r.stop or '', 'att', h.att or '0',
    'ra', b['b.run'] or '0', 'ea', b['b.eval'] or '0', 'sampled', r.sampled or '0', 'total', r.total or '0', 'turns', r.turns or '0',
    'v0', r.v0 or '', 'v1', r.v1 or '', 'init_ms', b['ms.init'] or '0', 'run_ms', b['ms.run'] or '0', 'eval_ms', b['ms.eval'] or '0',
    'all_ms', NOW - tonumber(b.t or NOW), 'inc', b.inc or '0', 'stage', h.stage or '')
  call('HSET', key, 'st', 'done', 'out', r.out, 'why', r.why or '', 'rid', rid, 'eid', '', 'own', '', 'done', NOW, ...)
  local rk = run_key(run)
  told[run] = true
  undated[#undated + 1] = job
  count(rk, 'inflight', -1)
  count(rk, 'out.' .. r.out, 1)
  if b.res then count(KEYS[1], 'reserved', -tonumber(b.res)) end
  if grp == '' then
    call('ZREM', open_key(run), job)
  else
    call('XADD', P .. 's:reward', 'MAXLEN', '~', REWARD_MAXLEN, '*', 'kind', 'job', 'run', run, 'grp', grp, 'n', h.n or '0', 'job', job,
      'out', r.out, 'rew', r.rew or '')
    local fresh = call('HSETNX', group_key(grp) .. ':m', h.n, table.concat({r.out, r.rew or '', r.stop or '', r.sampled or '0', r.total or '0',
      r.turns or '0', h.att or '0', r.v0 or '', r.v1 or '', rid, r.why or '', r.comps or ''}, '|'))
    if fresh == 1 then close_group_if_full(grp, run) end
  end
  return rid
end

-- A job whose budget is used up, or that no retry can help: terminal record first, then a line for the people who look at failures.
local function dead_letter(job, h, why, outcome)
  local rid = terminal(job, h, {out = outcome or 'infra_failure', why = why})
  call('XADD', P .. 's:dead', 'MAXLEN', '~', DEAD_MAXLEN, '*', 'job', job, 'run', h.run, 'grp', h.grp or '', 'stage', h.stage or '',
    'att', h.att or '0', 'failed', h.failed or '0', 'lost', h.lost or '0', 'why', why, 'rid', rid)
end

-- Weighted deficit round robin over the runs that have waiting jobs of one class: moves jobs to s:init while that is short.
local QUANTUM = 8
local function admit(cls, window)
  local active, deficits = class_key(P .. 'active', cls), class_key(P .. 'deficit', cls)
  local turns = call('LLEN', active)
  if turns == 0 then return 0 end
  local stream = stage_stream('init', cls)
  local waiting = call('XLEN', stream)
  if waiting > 0 then
    local pending = redis.pcall('XPENDING', stream, 'init')
    if type(pending) == 'table' and not pending.err then waiting = waiting - pending[1] end
  end
  local room, moved, idle = window - waiting, 0, 0
  while room > 0 and turns > 0 and idle < turns do
    local run = call('LINDEX', active, 0)
    local rk, queue = run_key(run), queue_key(run, cls)
    local r = hash(rk, 'weight', 'quota', 'inflight', 'paused', 'cx')
    local deficit = tonumber(call('HGET', deficits, run) or '0') + QUANTUM * tonumber(r.weight or '1')
    local most = math.min(room, math.floor(deficit))
    if r.quota and tonumber(r.quota) > 0 then most = math.min(most, tonumber(r.quota) - tonumber(r.inflight or '0')) end
    if r.paused == '1' then most = 0 end
    local popped = most > 0 and call('ZPOPMIN', queue, most) or {}
    local count = #popped / 2
    for i = 1, #popped, 2 do
      local job = popped[i]
      local h = hash(job_key(job), 'st', 'run', 'grp', 'n', 'task', 'cls', 'att')
      if h.st == 'waiting' then make_ready(job, h, 'init') else count = count - 1 end
    end
    if count > 0 then
      call('HINCRBY', rk, 'inflight', count)
      room, moved, idle = room - count, moved + count, 0
    else
      idle = idle + 1
    end
    if call('EXISTS', queue) == 0 then
      call('LPOP', active)
      call('HDEL', deficits, run)
      call('HDEL', rk, class_key('listed', cls))
      turns = turns - 1
    else
      -- what was not used for want of room is kept, what was held back by quota or pause is not: no credit builds up while paused
      call('HSET', deficits, run, most > 0 and math.max(0, deficit - count) or 0)
      call('LMOVE', active, active, 'LEFT', 'RIGHT')
    end
  end
  return moved
end

-- One unit (a whole group, or a single job when members is 0) enters the queue of its run.
-- c: run, inc, tpl, task, cls, pri, wall_ms, ttl_ms, mf, ml, res, recovery
local function accept_unit(c, unit, members, prompt_body, prompt_id, draw, version)
  local keep_ms = c.wall_ms + c.ttl_ms
  call('SET', prompt_key(unit), prompt_body, 'PX', keep_ms)
  local rk, queue = run_key(c.run), queue_key(c.run, c.cls)
  local n = math.max(1, members)
  local last = call('HINCRBY', rk, 'seq', n)
  local base = -c.pri * 1099511627776
  local queued, deadlines = {}, {}
  for m = 0, n - 1 do
    local job = members == 0 and unit or (unit .. '.' .. m)
    local key = job_key(job)
    call('HSET', key, 'v', '1', 'run', c.run, 'inc', c.inc, 'grp', members == 0 and '' or unit, 'n', m, 'draw', draw, 'task', c.task,
      'cls', c.cls, 'tpl', c.tpl, 'st', 'waiting', 'stage', 'init', 'att', 0, 'failed', 0, 'lost', 0, 'mf', c.mf, 'ml', c.ml, 'res', c.res,
      't', NOW, 'dl', NOW + c.wall_ms, 'pv', version, 'recovery', c.recovery)
    call('PEXPIRE', key, keep_ms)
    queued[#queued + 1] = base + last - n + 1 + m
    queued[#queued + 1] = job
    deadlines[#deadlines + 1] = NOW + c.wall_ms
    deadlines[#deadlines + 1] = job
  end
  if members > 0 then
    call('HSET', group_key(unit), 'run', c.run, 'inc', c.inc, 'prompt', prompt_id, 'draw', draw, 'want', n, 'st', 'open', 't', NOW, 'pv', version,
      'begun', 0)
    call('PEXPIRE', group_key(unit), keep_ms)
  end
  call('ZADD', open_key(c.run), NOW, unit)
  call('ZADD', queue, unpack(queued))
  call('ZADD', P .. 'z:deadline', unpack(deadlines))
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
  local r = hash(run_key(run), 'st', 'inc', 'cx')
  if not r.st then return {'closed', 'unknown'} end
  if r.inc ~= inc then return {'stale', r.inc} end
  if r.st ~= 'open' then return {'closed', r.st} end
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

-- Ends one job that nobody holds, or marks one that a worker holds. Returns what was found.
local function cancel_job(job, reason)
  local key = job_key(job)
  local h = hash(key, 'st', 'run', 'grp', 'n', 'task', 'cls', 'att', 'stage', 'src', 'eid', 'cx', 'node')
  if not h.st then return 'unknown' end
  if h.st == 'done' then return 'done' end
  if h.st == 'running' then
    if not h.cx then call('HSET', key, 'cx', reason) end
    return 'running'
  end
  if h.st == 'waiting' then
    call('ZREM', queue_key(h.run, h.cls), job)
    call('HINCRBY', run_key(h.run), 'inflight', 1)
  elseif h.st == 'ready' then
    drop_entry(P .. h.src, h.stage, h.eid)
  elseif h.st == 'delayed' then
    call('ZREM', P .. 'z:delay', job)
  end
  call('HSET', key, 'cx', reason)
  terminal(job, h, {out = reason == 'deadline' and 'expired' or 'cancelled', why = reason})
  return 'settled'
end
