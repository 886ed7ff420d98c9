#!lua flags=allow-oom
-- The deadlines of a run stand still while its engines are away or load weights: a lease, begun and renewed by one call, ended by the same with no time.
-- Nothing of a job is touched: the run counts how long it stood (`still.ms`), each job and group knows what that was when its deadline was set
-- (`stood`), and whoever judges a deadline works it out (`stood_still`). A holder that died stood until its lease ran out, no longer: `still.until` says it
-- and nobody has to clear up. Fenced by incarnation; idempotent by holder. Another holder of the run takes over.
-- ARGV: run, inc, holder, lease_ms (0 = it ends)
-- Returns {'ok', ms that the run stood so far}; or {'stale', inc}, {'closed', 'unknown'}.
local run, holder, lease = ARGV[1], ARGV[3], tonumber(ARGV[4])
local refusal = inc_refusal(run, ARGV[2])
if refusal then return refusal end
local rk = run_key(run)
local r = hash(rk, 'still.by', 'still.until')
local ms, stands = stood_still(run)
if lease == 0 then
  if r['still.by'] == holder then
    call('HSET', rk, 'still.ms', ms)
    call('HDEL', rk, 'still.by', 'still.since', 'still.until')
  end
elseif stands and r['still.by'] == holder then
  call('HSET', rk, 'still.until', NOW + lease)
else
  call('HSET', rk, 'still.ms', ms, 'still.by', holder, 'still.since', NOW, 'still.until', NOW + lease)
end
return {'ok', ms}
