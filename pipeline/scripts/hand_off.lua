#!lua flags=allow-oom
-- A stage's output is kept and the job goes to the next stage. Fenced by (entry id, attempt); remembered a stage, so that a repeated call
-- whose reply was lost answers 'again', also when the job is further on by then.
-- ARGV: stage, ttl_ms, then per job: stream, entry id, job, attempt, node ('' = any), node epoch, active ms, body
-- The body lives as long as its job, and at least ttl_ms.
-- Returns per job 'ok', 'again', 'fenced', 'node_gone' (its lane has no live RUN worker: back to INIT after a pause, uncounted), or 'cx:<reason>'.
local stage, ttl = ARGV[1], tonumber(ARGV[2])
local handed, made, took = 'handed.' .. stage, 'b.' .. stage, 'ms.' .. stage
local out = {}
local read = job_reader('st', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cx', 'node')
local NODE_GONE_PAUSE_MS = 500 -- uncounted, so it must not spin
for i = 3, #ARGV, 8 do
  local short, eid, job, att = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local node, epoch, ms, body = ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7]
  local key = job_key(job)
  local h = read(job)
  if h.st ~= 'running' or h.eid ~= eid or h.att ~= att then
    local last = job_hash(job, handed)[handed]
    out[#out + 1] = last == eid .. '/' .. att and 'again' or last == eid .. '/' .. att .. '/gone' and 'node_gone' or 'fenced'
  elseif h.cx then
    out[#out + 1] = 'cx:' .. h.cx
  else
    if node ~= '' and call('HGET', P .. 'n:' .. node .. ':run', 'epoch') ~= epoch then
      note_attempt(job, att, stage, 'node_gone', 'the service that had its sandbox ended')
      requeue(job, job_hash(job, 'run', 'grp', 'n', 'task', 'att', 'stage', 'cls', 'node'), 'init', NODE_GONE_PAUSE_MS)
      call('HSET', key, handed, eid .. '/' .. att .. '/gone')
      out[#out + 1] = 'node_gone'
    else
      make_ready(job, h, NEXT[stage], NEXT[stage] == 'run' and node or nil, handed, eid .. '/' .. att, made, att, took, ms)
      if node ~= (h.node or '') then call('HSET', key, 'node', node, 'epoch', epoch) end
      call('SET', body_key(job, att, stage), body, 'PX', math.max(ttl, call('PTTL', key)))
      if stage == 'run' then unlink(body_key(job, att, 'turns')) end
      out[#out + 1] = 'ok'
    end
    drop_entry(P .. short, stage, eid)
  end
end
return out
