-- Jobs that await a reward from outside, and groups that are held for their trainer's hook (ADR 10). Stands after cancels.lua, since
-- whoever cancels may meet one.
--
-- An awaiting job is held by nobody: it is in no stream, has no lease and is not in flight. Its hash says what it ends as with a reward (`aw.out`,
-- `aw.rew`, ...); a record kind=awaiting stands in the results until it ends. A group of which members await has their number as `aw` and a field
-- `aw.<n>` for each. With `hold` (ms) it waits for its hook from the moment when every member has ended or awaits: then it is in z:held.
local function awaiting_key(run) return P .. 'aw:' .. run end
local AWAITED = {'out', 'why', 'rew', 'comps', 'stop', 'sampled', 'total', 'turns', 'v0', 'v1', 'segs', 'counts'}
local AWAITED_FIELDS = {'arid', 'rdl', 'dl'}
for i, name in ipairs(AWAITED) do AWAITED_FIELDS[#AWAITED_FIELDS + 1] = 'aw.' .. name end

-- What a job ends as, as it stands: as `terminal` takes it, and its own fields beside.
local function awaited(job)
  local a, r = hash(job_key(job), unpack(AWAITED_FIELDS)), {}
  for _, name in ipairs(AWAITED) do r[name] = a['aw.' .. name] or '' end
  return r, a
end

-- An awaiting job ends. h: as for `terminal`, unloaded.
local function finish_awaiting(job, h, r, a, ...)
  local rid = terminal(job, h, r, ...)
  redis.pcall('XDEL', results_key(h.run), a.arid or '')
  call('ZREM', awaiting_key(h.run), job)
  count(run_key(h.run), 'inflight', 1) -- it was taken out when it began to wait
  return rid
end

-- It got no reward in time: no reward of 0 (promise 7).
local function finish_missing(job, h, r, a)
  r.out, r.why, r.rew, r.comps = 'infra_failure', 'reward_missing', '', ''
  local rid, tries = finish_awaiting(job, h, r, a), hash(job_key(job), 'failed', 'lost')
  count(run_key(h.run), 'rewards.missing', 1)
  tell_dead('job', job, 'run', h.run, 'grp', h.grp or '', 'stage', h.stage or '', 'att', h.att or '0', 'failed', tries.failed or '0',
    'lost', tries.lost or '0', 'why', 'reward_missing: nobody reported a reward in time', 'rid', rid)
end

-- By a cancel or a deadline, from `cancel_job`. One that has its reward keeps it when its time is over.
end_awaiting = function(job, h, reason)
  local r, a = awaited(job)
  if reason == 'deadline' and r.rew ~= '' then
    finish_awaiting(job, h, r, a)
  elseif reason == 'deadline' and tonumber(a.rdl or 'inf') <= NOW then
    finish_missing(job, h, r, a)
  else
    r.out, r.why, r.rew, r.comps = outcome_of(reason), reason, '', ''
    finish_awaiting(job, h, r, a, 'cx', reason)
  end
end

-- A group whose members have all ended or wait is held for its hook, once. have: members that ended.
hold_group = function(grp, run, g, have)
  local key = group_key(grp)
  local s = hash(key, 'hold', 'held', 'prompt', 'inc')
  if not s.hold or s.held or have + tonumber(g.aw) < (tonumber(g.want) or math.huge) then return end
  local due = NOW + tonumber(s.hold)
  local hrid = call('XADD', results_key(run), '*', 'kind', 'held', 'run', run, 'grp', grp, 'prompt', s.prompt or '', 'want', g.want, 'due', due,
    'inc', s.inc or '0')
  call('HSET', key, 'held', NOW, 'hdl', due, 'hrid', hrid)
  call('ZADD', P .. 'z:held', due, grp)
end

-- The hold of a group is over: its hook reported, its time passed, or all of its members ended otherwise.
end_hold = function(grp, run)
  if call('ZREM', P .. 'z:held', grp) == 1 then
    redis.pcall('XDEL', results_key(run), call('HGET', group_key(grp), 'hrid') or '')
  end
end

-- A member of a group begins to wait.
local function add_awaiting(grp, run, n, hold_ms)
  local key = group_key(grp)
  local g = groups[grp] or hash_or_nothing(key, 'want', 'st', 'prompt', 'val', 'aw')
  groups[grp] = g
  if not g.st then return end
  if call('HSETNX', key, 'aw.' .. n, NOW) == 1 then g.aw = call('HINCRBY', key, 'aw', 1) end
  if hold_ms > 0 then
    call('HSETNX', key, 'hold', hold_ms)
    hold_group(grp, run, g, call('HLEN', key .. ':m'))
  end
end

-- The record by which a trainer learns of an awaiting job. h: job, run, grp, n, task, att, inc, b.run; a: due, and what it ends as.
local function tell_awaiting(job, h, r, due)
  return call('XADD', results_key(h.run), '*', 'kind', 'awaiting', 'job', job, 'run', h.run, 'grp', h.grp or '', 'n', h.n or '0', 'task', h.task or '',
    'out', r.out, 'why', r.why, 'rew', r.rew, 'comps', r.comps, 'stop', r.stop, 'att', h.att or '0', 'ra', h['b.run'] or '0', 'sampled', r.sampled,
    'total', r.total, 'turns', r.turns, 'v0', r.v0, 'v1', r.v1, 'segs', r.segs, 'counts', r.counts, 'due', due,
    'inc', h.inc or '0')
end

-- Two maps of components as JSON. Of a name that stands twice readers take the last: what the member has.
local function joined(new, own)
  if new == '' or own == '' then return new .. own end
  return string.sub(new, 1, -2) .. ',' .. string.sub(own, 2)
end

-- nil, or what keeps a value out: the bounds of the step that the group was launched for.
local function out_of_bounds(grp, component, text)
  local k = (grp or '') ~= '' and hash_or_nothing(group_key(grp), 'step', 'run')
  if not k or not k.step then return nil end
  local s = hash_or_nothing(step_key(k.run, k.step), 'low', 'high', 'component')
  if component ~= (s.component or 'score') then return nil end
  local value = tonumber(text)
  if value < tonumber(s.low or '-inf') or value > tonumber(s.high or 'inf') then return s.low .. ' to ' .. s.high end
  return nil
end
