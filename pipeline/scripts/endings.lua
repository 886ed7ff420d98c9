-- How a job ends: its terminal record, its line in its group, the group's closing, dead letters. Stands after lib.lua.
local end_awaiting, hold_group, end_hold -- awaiting.lua

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

-- One line a member, the first one stands; the last one closes the group. A group that is gone, or is something else by now, takes no lines. One whose
-- number of members is none closes by its first line: who accounts for groups finds that it cannot be read, and takes it out.
local groups = {}
local function add_member(grp, run, n, line)
  local key = group_key(grp)
  local g = groups[grp] or hash_or_nothing(key, 'want', 'st', 'prompt', 'val', 'aw')
  groups[grp] = g
  if not g.st or call('HSETNX', key .. ':m', n, line) == 0 then return end
  local have = call('HLEN', key .. ':m')
  if have == 1 then call('PEXPIRE', key .. ':m', math.max(1, call('PTTL', key))) end
  if g.aw and call('HDEL', key, 'aw.' .. n) == 1 then g.aw = call('HINCRBY', key, 'aw', -1) end
  if g.st == 'open' and have >= (tonumber(g.want) or 0) then
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
-- r: out, why, rew, comps, stop, sampled, total, turns, v0, v1, segs, counts (all text). More fields for the job's hash may follow.
local TERMINAL_FIELDS = {'b.run', 'b.eval', 'ms.init', 'ms.run', 'ms.eval', 't', 'res', 'inc', 'tok', 'at.init', 'at.run', 'at.eval'}
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
    'v0', r.v0 or '', 'v1', r.v1 or '', 'segs', r.segs or '', 'counts', r.counts or '',
    'began', (b['at.init'] or '') .. ' ' .. (b['at.run'] or '') .. ' ' .. (b['at.eval'] or ''), 'init_ms', b['ms.init'] or '0', 'run_ms', b['ms.run'] or '0', 'eval_ms', b['ms.eval'] or '0',
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
