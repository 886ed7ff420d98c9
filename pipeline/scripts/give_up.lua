#!lua flags=allow-oom
-- Attempts that could not do their work: again after a pause, or a dead letter when the budget is used up. Fenced by (entry id, attempt).
-- Kinds: 'failed' counts against max_failed · 'lost' (environment gone) counts against max_lost · 'back' (a worker that stops, or cannot serve
-- this job) is not counted and goes back at once · 'dead' ends the job, no retry can help.
-- ARGV: stage, backoff_ms, most backoff_ms, then per job: stream, entry id, job, attempt, kind, why, jitter 0 to 1, stage to retry ('' = default)
-- Returns per job 'retry', 'back', 'dead', 'fenced', or 'cx:<reason>' (settled as cancelled).
local stage, base, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local out = {}
for i = 4, #ARGV, 8 do
  local short, eid, job, att = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local kind, why, jitter, retry = ARGV[i + 4], ARGV[i + 5], tonumber(ARGV[i + 6]), ARGV[i + 7]
  local key = job_key(job)
  local h = job_hash(job, 'st', 'stage', 'eid', 'att', 'cx', 'run', 'grp', 'n', 'task', 'cls', 'node', 'failed', 'lost', 'mf', 'ml', 'inc')
  if h.st ~= 'running' or h.eid ~= eid or h.att ~= att then
    out[#out + 1] = 'fenced'
  else
    local to = retry ~= '' and retry or retry_stage(h)
    local cx = cancel_of(h)
    if cx then
      terminal(job, h, {out = outcome_of(cx), why = cx})
      out[#out + 1] = 'cx:' .. cx
    elseif kind == 'back' then
      note_attempt(job, att, stage, kind, why)
      requeue(job, h, to, 0)
      out[#out + 1] = 'back'
    else
      local counter = kind == 'lost' and 'lost' or 'failed'
      local times = tonumber(h[counter]) + (kind == 'dead' and 0 or 1)
      h[counter] = tostring(times)
      note_attempt(job, att, stage, kind, why)
      if kind == 'dead' or times > tonumber(counter == 'lost' and h.ml or h.mf) then
        dead_letter(job, h, why)
        out[#out + 1] = 'dead'
      else
        local pause = math.min(most, base * 2 ^ (times - 1)) * (0.5 + jitter / 2)
        requeue(job, h, to, math.floor(pause))
        out[#out + 1] = 'retry'
      end
      call('HSET', key, 'err', why, 'err.stage', stage, counter, times)
    end
    drop_entry(P .. short, stage, eid)
    unlink(body_key(job, att, 'turns'))
  end
end
return out
