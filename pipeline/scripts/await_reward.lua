#!lua flags=allow-oom
-- Attempts end, and their jobs await a reward from outside or their group's hook: nobody holds them from here on, and they are not in flight.
-- Fenced by (entry id, attempt); remembered a stage, so that a repeated call whose reply was lost answers 'again'. A job that was cancelled
-- meanwhile ends as cancelled.
-- ARGV: stage, ttl_ms, then per job: stream, entry id, job, attempt, active ms, body ('' = none), kind of body (stage name),
--       outcome, why, reward ('' = none yet), components, stop, sampled tokens, total tokens, turns, first version, last version,
--       sizes of segments, counts of the trajectory,
--       ms until it ends without a reward ('' = it has one), ms that its group is held at most (0 = no hook),
--       how many by-products (0 without a body), and of each its name and content
-- Returns per job 'ok', 'again', 'fenced', or 'cx:<reason>' (settled as cancelled).
local stage, ttl = ARGV[1], tonumber(ARGV[2])
local handed = 'handed.' .. stage
local out = {}
local read = job_reader('st', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cx', 'dl', unpack(TERMINAL_FIELDS))
local i = 3
while i <= #ARGV do
  local short, eid, job, att = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local key = job_key(job)
  local h = read(job)
  if h.st ~= 'running' or h.eid ~= eid or h.att ~= att then
    local past = job_hash(job, handed, 'settled')
    out[#out + 1] = (past[handed] == eid .. '/' .. att or past.settled == eid .. '/' .. att) and 'again' or 'fenced'
  else
    local body, kind = ARGV[i + 5], ARGV[i + 6]
    h.loaded, h.stage = true, stage
    h['ms.' .. stage] = ARGV[i + 4]
    local fields = {'ms.' .. stage, ARGV[i + 4]}
    if #body > 0 then
      local ms = math.max(ttl, call('PTTL', key))
      call('SET', body_key(job, att, kind), body, 'PX', ms)
      keep_attached(job, att, tonumber(ARGV[i + 21]), i + 22, ms)
      h['b.' .. kind] = att
      fields[3], fields[4] = 'b.' .. kind, att
    end
    local r, due, hold = {}, tonumber(ARGV[i + 19]), tonumber(ARGV[i + 20])
    for at, name in ipairs(AWAITED) do r[name] = ARGV[i + 6 + at] end
    local cx = cancel_of(h)
    if cx then
      r.out, r.why, r.rew, r.comps = outcome_of(cx), cx, '', ''
      fields[#fields + 1], fields[#fields + 2] = 'settled', eid .. '/' .. att
      terminal(job, h, r, unpack(fields))
      out[#out + 1] = 'cx:' .. cx
    else
      local wall = tonumber(h.dl or '0')
      due = due and NOW + due or nil
      local arid = tell_awaiting(job, h, r, math.min(due or wall, wall))
      for _, name in ipairs(AWAITED) do
        fields[#fields + 1], fields[#fields + 2] = 'aw.' .. name, r[name]
      end
      if due then
        fields[#fields + 1], fields[#fields + 2] = 'rdl', due
        call('ZADD', P .. 'z:deadline', math.min(due, wall), job)
      end
      call('HSET', key, 'st', 'awaiting', 'stage', stage, 'eid', '', 'src', '', 'arid', arid, handed, eid .. '/' .. att, unpack(fields))
      call('ZADD', awaiting_key(h.run), math.min(due or wall, wall), job)
      keep(awaiting_key(h.run), math.max(ttl, call('PTTL', key)))
      count(run_key(h.run), 'inflight', -1)
      told[h.run] = true -- a run that its quota held back has room
      if (h.grp or '') ~= '' then add_awaiting(h.grp, h.run, h.n, hold) end
      out[#out + 1] = 'ok'
    end
    drop_entry(P .. short, stage, eid)
    if stage == 'run' then unlink(body_key(job, att, 'turns')) end
  end
  i = i + 22 + 2 * ARGV[i + 21]
end
return out
