#!lua flags=allow-oom
-- Cancels jobs, groups or a run: settles what nobody holds, marks what a worker holds, and publishes one message for the target. Idempotent.
-- Of a run at most about `most` jobs are settled a call: call again from where it stopped while the first reply is 'more'. Units that end meanwhile
-- move the others up, so the last pass over a run is one that settled nothing. The cancel of a run is for one incarnation and those before it:
-- when a newer trainer has the run by now (a later call of the same cancel, a call whose reply was lost, a trainer that was fenced), its jobs and
-- the run itself are left alone.
-- ARGV: target kind (job, group, run), reason, most, place in the open units to go on from, incarnation of the run (else 0),
--       target id... (of runs one a call)
-- Returns {'ok' or 'more', settled, running, done, unknown, place}.
local kind, reason, most, place = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local tally = {settled = 0, running = 0, done = 0, unknown = 0}
local function one(job)
  local found = cancel_job(job, reason)
  tally[found] = tally[found] + 1
end
local function members(grp)
  local want = tonumber(call('HGET', group_key(grp), 'want') or '0')
  if want == 0 then tally.unknown = tally.unknown + 1 end
  for m = 0, want - 1 do one(grp .. '.' .. m) end
end
local PAGE = 64
local more, fresh = false, false
local inc = tonumber(ARGV[5])
local function is_of_newer(unit)
  local found = hash_or_nothing(group_key(unit), 'inc').inc or job_hash(unit, 'inc').inc
  return found and tonumber(found) > inc
end
for i = 6, #ARGV do
  local id = ARGV[i]
  if kind == 'job' then one(id)
  elseif kind == 'group' then members(id)
  else
    if call('EXISTS', run_key(id)) == 0 then
      tally.unknown = tally.unknown + 1
    else
      local newer = tonumber(hash_or_nothing(run_key(id), 'inc').inc or '0') > inc
      if not newer then fresh = call('HSETNX', run_key(id), 'cx', reason) == 1 end
      local seen, page
      repeat
        local open = call('ZCARD', open_key(id))
        page, seen = call('ZRANGE', open_key(id), place, place + PAGE - 1), 0
        while seen < #page and tally.settled < most do
          seen = seen + 1
          if not (newer and is_of_newer(page[seen])) then
            if call('EXISTS', group_key(page[seen])) == 1 then members(page[seen]) else one(page[seen]) end
          end
        end
        -- what ended left the open units, the others moved up
        place = place + seen - (open - call('ZCARD', open_key(id)))
        more = seen < #page or (tally.settled >= most and #page == PAGE)
      until more or #page < PAGE
    end
  end
end
-- workers are told of a run once: its own mark stands, and their renewals read it
if fresh or (kind ~= 'run' and tally.settled + tally.running > 0) then
  -- a run that a new trainer takes is open again: its message, read late, must not end that trainer's jobs
  call('XADD', P .. 's:cancel', 'MAXLEN', '~', CANCEL_MAXLEN, '*', 'kind', kind, 'why', reason, 'ids', table.concat(ARGV, ' ', 6), 'inc', inc, 'ts', NOW)
end
return {more and 'more' or 'ok', tally.settled, tally.running, tally.done, tally.unknown, place}
