#!lua flags=allow-oom
-- Cancels jobs, groups or a run. The mark on the target and the one message to the workers come first, then what nobody holds is settled and what a
-- worker holds is marked, at most about `most` members a call: call again with the cursor it answers while the first word is 'more'. Whoever stops in
-- between has cancelled all the same: `begin` refuses, `renew` tells, `reconcile` settles. Idempotent; the first reason stands.
-- Units of a run that end meanwhile move the others up, so the last pass over a run is one that settled nothing. The cancel of a run is for one
-- incarnation and those before it: when a newer trainer has the run by now (a later call of the same cancel, a call whose reply was lost, a trainer
-- that was fenced), its jobs and the run itself are left alone.
-- ARGV: target kind (job, group, run), reason, most, cursor ('' = from the beginning), incarnation of the run (else 0), target id... (of runs one a call)
-- Returns {'ok' or 'more', settled, running, done, unknown, cursor}.
local kind, reason, most, cursor, inc = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local tally = {settled = 0, running = 0, done = 0, unknown = 0}
-- Where a call goes on: number of the unit, its next member, and its id, since others may stand in its place by then.
local at, member, whose = string.match(cursor, '^(%d+)|(%d+)|(.*)$')
at, member = tonumber(at or 0), tonumber(member or 0)
local function one(job, why)
  local found = cancel_job(job, why)
  tally[found] = tally[found] + 1
  most = most - 1
end
-- True when all of a unit was passed over; else `member` says how far.
local function pass_over(unit, why)
  if unit ~= whose then member = 0 end
  local g = hash_or_nothing(group_key(unit), 'want', 'cx')
  if not g.want then
    if kind == 'group' then tally.unknown, most = tally.unknown + 1, most - 1 else one(unit, why) end
    return true
  end
  local want = tonumber(g.want)
  while member < want do
    if most <= 0 then
      whose = unit
      return false
    end
    one(unit .. '.' .. member, g.cx or why)
    member = member + 1
  end
  return true
end
local function mark(grp)
  return hash_or_nothing(group_key(grp), 'st').st == 'open' and call('HSETNX', group_key(grp), 'cx', reason) == 1
end
local more = false
if kind == 'job' then
  for i = 6, #ARGV do one(ARGV[i], reason) end
  if tally.settled + tally.running > 0 then tell_cancel(kind, reason, {unpack(ARGV, 6)}) end
elseif kind == 'group' then
  local fresh = {}
  if cursor == '' then
    for i = 6, #ARGV do if mark(ARGV[i]) then fresh[#fresh + 1] = ARGV[i] end end
    if #fresh > 0 then tell_cancel(kind, reason, fresh) end
  end
  while at < #ARGV - 5 do
    if most <= 0 or not pass_over(ARGV[6 + at], reason) then
      more = true
      break
    end
    at, member = at + 1, 0
  end
else
  local run = ARGV[6]
  local PAGE = 64
  local function is_of_newer(unit)
    local found = hash_or_nothing(group_key(unit), 'inc').inc or job_hash(unit, 'inc').inc
    return found and tonumber(found) > inc
  end
  if call('EXISTS', run_key(run)) == 0 then
    tally.unknown = 1
  else
    local newer = tonumber(hash_or_nothing(run_key(run), 'inc').inc or '0') > inc
    -- workers are told of a run once: its own mark stands, and their renewals read it. The incarnation: a run that a new trainer takes is open
    -- again, and this message, read late, must not end that trainer's jobs
    if not newer and call('HSETNX', run_key(run), 'cx', reason) == 1 then tell_cancel(kind, reason, {run}, inc) end
    repeat
      local open, seen = call('ZCARD', open_key(run)), 0
      local page = call('ZRANGE', open_key(run), at, at + PAGE - 1)
      while seen < #page and not more do
        local unit = page[seen + 1]
        if most <= 0 then
          more = true
        elseif newer and is_of_newer(unit) then
          seen = seen + 1
        else
          mark(unit)
          if pass_over(unit, reason) then seen, member = seen + 1, 0 else more = true end
        end
      end
      -- what ended left the open units, the others moved up
      at = at + seen - (open - call('ZCARD', open_key(run)))
    until more or #page < PAGE
  end
end
return {more and 'more' or 'ok', tally.settled, tally.running, tally.done, tally.unknown, string.format('%d|%d|%s', at, member, whose or '')}
