#!lua flags=allow-oom
-- needs: pool
-- Assignments live on while their jobs do, and the calls in flight with them. One that ran out while Redis was away lives on, too, when nobody swept
-- it: its process has called all the time. ARGV: lease_ms, then per assignment: run, server, holder
-- Returns per assignment 1, or 0 when it was swept or given back.
local lease, out = tonumber(ARGV[1]), {}
for i = 2, #ARGV, 3 do
  local key = leases_key(ARGV[i], ARGV[i + 1])
  if call('ZSCORE', key, ARGV[i + 2]) then
    call('ZADD', key, NOW + lease, ARGV[i + 2])
    keep(key, HOUR)
    keep(calls_key(ARGV[i], ARGV[i + 1]), HOUR)
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
