-- What every script stands on, and gets what it uses of (sources.py): names of keys, reading, what a batch gathers, the places of a job. Key names
-- mirror pipeline/keys.py (a test compares them).
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
local function attached_key(job, att) return body_key(job, att, 'attached') end
local function prompt_key(unit) return P .. 'b:' .. unit .. ':prompt' end
local function template_key(run, tpl) return P .. 'tp:' .. run .. ':' .. tpl end
local function group_key(grp) return P .. 'g:' .. grp end
local function run_key(run) return P .. 'r:' .. run end
local function queue_key(run, cls) return class_key(P .. 'q:' .. run, cls) end
local function results_key(run) return P .. 's:results:' .. run end
local function open_key(run) return P .. 'open:' .. run end
local function done_key(run, at_ms) return P .. 'done:' .. run .. ':' .. math.floor(at_ms / 86400000) end
local function step_key(run, k) return P .. 'st:' .. run .. ':' .. k end

local REWARD_MAXLEN, DEAD_MAXLEN = 100000, 100000

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

-- nil, or why a call is refused of a trainer that may also drain a run that is closed.
local function inc_refusal(run, inc)
  local r = hash(run_key(run), 'st', 'inc')
  if not r.st then return {'closed', 'unknown'} end
  if r.inc ~= inc then return {'stale', r.inc} end
  return nil
end

-- nil, or why a trainer's call is refused that brings work.
local function run_refusal(run, inc)
  local r = hash(run_key(run), 'st', 'inc', 'cx', 'why')
  if not r.st then return {'closed', 'unknown'} end
  if r.inc ~= inc then return {'stale', r.inc} end
  if r.st ~= 'open' then return {'closed', r.why and r.st .. ' (' .. r.why .. ')' or r.st} end
  if r.cx then return {'closed', 'cancelled (' .. r.cx .. ')'} end
  return nil
end

-- How long the deadlines of a run have stood still so far, ms, a time that goes on included (stand_still.lua); and until when they stand, if they do.
-- A deadline that was set when that was `stood` falls due so much later: nothing of a job is touched when its run's engines go and come back.
local function stood_still(run)
  local r = hash_or_nothing(run_key(run), 'still.ms', 'still.since', 'still.until')
  local ms = tonumber(r['still.ms'] or '0')
  if not r['still.since'] then return ms, nil end
  local ends = tonumber(r['still.until'])
  return ms + math.max(0, math.min(NOW, ends) - tonumber(r['still.since'])), ends > NOW and ends or nil
end

-- A name belongs to one boot of one process. A missing lock (it ran out while Redis or the worker was away) is taken again.
local function holds_name(consumer, boot, lock_ms)
  local key = P .. 'w:' .. consumer
  local held = call('HGET', key, 'boot')
  if held and held ~= boot then return false end
  if not held then
    call('HSET', key, 'boot', boot, 'beat', NOW, 'since', NOW)
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

-- A job becomes claimable: one new entry with a readable header (its stage is the stream's, its time the entry id's). More fields for the job's hash
-- may follow. What can fail (a stream key of another type) comes first: then nothing is changed. A lane that was swept and deleted is among `streams`
-- again: its node may die before it reads, and nobody would look for what is in it.
local function make_ready(job, h, stage, node, ...)
  local stream = stage_stream(stage, h.cls, node)
  local eid = call('XADD', stream, '*', 'job', job, 'run', h.run, 'grp', h.grp or '', 'n', h.n or '0', 'task', h.task or '',
    'att', h.att or '0')
  if node and node ~= '' then call('SADD', P .. 'streams', string.sub(stream, #P + 1)) end
  call('HSET', job_key(job), 'st', 'ready', 'stage', stage, 'src', string.sub(stream, #P + 1), 'eid', eid, ...)
  return eid
end

-- Only RUN has lanes: an environment that one node has. EVAL starts from a clean one and runs anywhere.
local function lane_of(h, stage) return stage == 'run' and h.node or nil end

-- What EVAL keeps beside its grade (logs): a hash of names and their content as it came, which stands in ARGV from `at` on. It is named by the attempt
-- of the grade (`b.eval`), and whoever lets go of that body lets go of it.
local function keep_attached(job, att, count, at, ms)
  if count == 0 then return end
  call('HSET', attached_key(job, att), unpack(ARGV, at, at + 2 * count - 1))
  call('PEXPIRE', attached_key(job, att), ms)
end

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

-- An attempt that ended short of what its stage makes, for whoever asks later what became of the job: the newest are kept. `how`: the kinds of
-- give_up, 'salvaged', 'node_gone'. Called before the job moves on.
local EARLIER_KEPT, WHY_KEPT = 16, 500
local function note_attempt(job, att, stage, how, why)
  local key = job_key(job)
  local h = hash(key, 'own', 'at.' .. stage)
  call('HSET', key, 'was.' .. att, table.concat({stage, how, h['at.' .. stage] or NOW, NOW, h.own or '', string.sub(why, 1, WHY_KEPT)}, '|'))
  call('HDEL', key, 'was.' .. string.format('%d', tonumber(att) - EARLIER_KEPT))
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
