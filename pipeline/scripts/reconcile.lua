#!lua flags=allow-oom
-- Open units of a run whose entry is in no stream (a stream was deleted, a replica went back in time) become claimable again, uncounted; a worker
-- that still works on one is fenced. Open jobs whose hash is gone or of another type end as dead letters.
-- ARGV: run, cursor, most
-- Returns {next cursor ('0' = done), jobs put back}.
local run = ARGV[1]
local scan = call('ZSCAN', open_key(run), ARGV[2], 'COUNT', tonumber(ARGV[3]))
local back = 0
local function one(job)
  local h, usable = job_hash(job, 'st', 'stage', 'src', 'eid', 'att', 'own', 'run', 'grp', 'n', 'task', 'cls', 'node')
  if not h.st then
    bury(job, usable and LOST_HASH or UNUSABLE)
  elseif h.st == 'ready' or h.st == 'running' then
    if not is_there(P .. h.src, h.eid) then
      requeue(job, h, retry_stage(h), 0)
      back = back + 1
    end
  elseif h.st == 'waiting' then
    if not call('ZSCORE', queue_key(run, h.cls), job) then
      make_ready(job, h, 'init')
      count(run_key(run), 'inflight', 1)
      back = back + 1
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
  local want = call('HGET', group_key(unit), 'want')
  if want then
    for m = 0, tonumber(want) - 1 do one(unit .. '.' .. m) end
  elseif call('EXISTS', job_key(unit .. '.0')) == 1 then
    -- a group without its hash: its members end as they are, and who accounts for groups finds it gone
    call('ZREM', open_key(run), unit)
    call('ZADD', P .. 'z:closed', NOW, unit)
  else
    one(unit)
  end
end
return {scan[1], back}
