#!lua flags=allow-oom
-- Attempts end their jobs: terminal record, fan-in and counters in one step (promises 1 and 3). Fenced by (entry id, attempt), and the second
-- call for a job answers 'again' or 'fenced', never a second record. A job that was cancelled meanwhile ends as cancelled.
-- ARGV: stage, ttl_ms, then per job: stream, entry id, job, attempt, active ms, body ('' = none), kind of body (stage name),
--       outcome, why, reward, components, stop, sampled tokens, total tokens, turns, first version, last version, sizes of segments,
--       counts of the trajectory,
--       how many by-products (0 without a body), and of each its name and content
-- Returns per job 'ok', 'again', 'fenced', or 'cx:<reason>' (settled as cancelled).
local stage, ttl = ARGV[1], tonumber(ARGV[2])
local out = {}
local read = job_reader('st', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cx', unpack(TERMINAL_FIELDS))
local i = 3
while i <= #ARGV do
  local short, eid, job, att = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local key = job_key(job)
  local h = read(job)
  if h.st ~= 'running' or h.eid ~= eid or h.att ~= att then
    out[#out + 1] = job_hash(job, 'settled').settled == eid .. '/' .. att and 'again' or 'fenced'
  else
    local body, kind = ARGV[i + 5], ARGV[i + 6]
    h.loaded, h.stage = true, stage
    h['ms.' .. stage] = ARGV[i + 4]
    local fields = {'ms.' .. stage, ARGV[i + 4], 'settled', eid .. '/' .. att}
    if #body > 0 then
      local ms = math.max(ttl, call('PTTL', key))
      call('SET', body_key(job, att, kind), body, 'PX', ms)
      keep_attached(job, att, tonumber(ARGV[i + 19]), i + 20, ms)
      h['b.' .. kind] = att
      fields[5], fields[6] = 'b.' .. kind, att
    end
    local r = {out = ARGV[i + 7], why = ARGV[i + 8], rew = ARGV[i + 9], comps = ARGV[i + 10], stop = ARGV[i + 11], sampled = ARGV[i + 12],
      total = ARGV[i + 13], turns = ARGV[i + 14], v0 = ARGV[i + 15], v1 = ARGV[i + 16], segs = ARGV[i + 17], counts = ARGV[i + 18]}
    if h.cx then
      r.out, r.why, r.rew, r.comps = outcome_of(h.cx), h.cx, '', ''
      out[#out + 1] = 'cx:' .. h.cx
    else
      out[#out + 1] = 'ok'
    end
    local rid = terminal(job, h, r, unpack(fields))
    drop_entry(P .. short, stage, eid)
    if stage == 'run' then unlink(body_key(job, att, 'turns')) end
    if r.out == 'infra_failure' then
      local tries = hash(key, 'failed', 'lost')
      tell_dead('job', job, 'run', h.run, 'grp', h.grp or '', 'stage', stage, 'att', att, 'failed', tries.failed, 'lost', tries.lost, 'why', r.why, 'rid', rid)
    end
  end
  i = i + 20 + 2 * ARGV[i + 19]
end
return out
