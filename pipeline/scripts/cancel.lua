#!lua flags=allow-oom
-- Cancels jobs, groups or a run: settles what nobody holds, marks what a worker holds, and publishes one message for the target. Idempotent.
-- A run's waiting jobs are settled at most `most` a call: call again while the first reply is 'more'.
-- ARGV: target kind (job, group, run), reason, most, target id...
-- Returns {'ok' or 'more', settled, running, done, unknown}.
local kind, reason, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count = {settled = 0, running = 0, done = 0, unknown = 0}
local function one(job) local found = cancel_job(job, reason) count[found] = count[found] + 1 end
local function members(grp)
  local want = tonumber(call('HGET', group_key(grp), 'want') or '0')
  if want == 0 then count.unknown = count.unknown + 1 end
  for m = 0, want - 1 do one(grp .. '.' .. m) end
end
local more = false
for i = 4, #ARGV do
  local id = ARGV[i]
  if kind == 'job' then one(id)
  elseif kind == 'group' then members(id)
  else
    if call('EXISTS', run_key(id)) == 0 then
      count.unknown = count.unknown + 1
    else
      call('HSETNX', run_key(id), 'cx', reason)
      local seen = 0
      for _, unit in ipairs(call('ZRANGE', open_key(id), 0, -1)) do
        if seen >= most then more = true break end
        local before = count.settled
        if call('EXISTS', group_key(unit)) == 1 then members(unit) else one(unit) end
        if count.settled > before then seen = seen + count.settled - before end
      end
    end
  end
end
if count.settled + count.running > 0 or kind == 'run' then
  call('XADD', P .. 's:cancel', 'MAXLEN', '~', CANCEL_MAXLEN, '*', 'kind', kind, 'why', reason, 'ids', table.concat(ARGV, ' ', 4), 'ts', NOW)
end
return {more and 'more' or 'ok', count.settled, count.running, count.done, count.unknown}
