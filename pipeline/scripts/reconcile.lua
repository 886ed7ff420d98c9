#!lua flags=allow-oom
-- Open units of a run whose entry is in no stream (a stream was deleted, a replica went back in time) become claimable again, uncounted.
-- A job that a live worker holds is left alone: its own renewal will find out.
-- ARGV: run, cursor, most
-- Returns {next cursor ('0' = done), jobs put back}.
local run = ARGV[1]
local scan = call('ZSCAN', open_key(run), ARGV[2], 'COUNT', tonumber(ARGV[3]))
local back = 0
local function one(job)
  local h = hash(job_key(job), 'st', 'stage', 'src', 'eid', 'att', 'own', 'run', 'grp', 'n', 'task', 'cls', 'node')
  if h.st == 'ready' or h.st == 'running' then
    local found = redis.pcall('XRANGE', P .. h.src, h.eid, h.eid)
    if type(found) ~= 'table' or found.err or #found == 0 then
      local consumer, boot = string.match(h.own or '', '^(.*)#(.*)$')
      if h.st == 'ready' or call('HGET', P .. 'w:' .. consumer, 'boot') ~= boot then
        requeue(job, h, retry_stage(h), 0)
        back = back + 1
      end
    end
  elseif h.st == 'waiting' then
    if not call('ZSCORE', queue_key(run, h.cls), job) then
      call('HINCRBY', run_key(run), 'inflight', 1)
      make_ready(job, h, 'init')
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
  elseif call('EXISTS', job_key(unit)) == 1 then
    one(unit)
  else
    call('ZREM', open_key(run), unit)
  end
end
return {scan[1], back}
