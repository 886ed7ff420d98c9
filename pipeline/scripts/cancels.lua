-- Whether a job is cancelled, wherever the mark stands, and how one is. Stands after endings.lua.
-- The one message to the workers. inc: of a run's cancel; nil = whichever started it.
local CANCEL_MAXLEN = 20000
local function tell_cancel(kind, reason, ids, inc)
  call('XADD', P .. 's:cancel', 'MAXLEN', '~', CANCEL_MAXLEN, '*', 'kind', kind, 'why', reason, 'ids', table.concat(ids, ' '), 'inc', inc or 0, 'ts', NOW)
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
