#!lua flags=allow-oom
-- needs: pool
-- Assignments live on while their jobs do, and the calls in flight with them. ARGV: lease_ms, then per assignment: run, server, holder
-- Returns per assignment 1, or 0 when it had run out.
local lease, out = tonumber(ARGV[1]), {}
for i = 2, #ARGV, 3 do
  local key = leases_key(ARGV[i], ARGV[i + 1])
  local score = call('ZSCORE', key, ARGV[i + 2])
  if score and tonumber(score) > NOW then
    call('ZADD', key, NOW + lease, ARGV[i + 2])
    keep(key, lease * 2)
    keep(calls_key(ARGV[i], ARGV[i + 1]), lease * 2)
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
