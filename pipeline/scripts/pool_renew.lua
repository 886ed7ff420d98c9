#!lua flags=allow-oom
-- Assignments live on while their jobs do. KEYS[1] is the meta key of the pool's own tag.
-- ARGV: lease_ms, then per assignment: run, server, holder
-- Returns per assignment 1, or 0 when it had run out or its server is not up any more.
local lease, out = tonumber(ARGV[1]), {}
for i = 2, #ARGV, 3 do
  local run, url, holder = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local key = P .. 'as:' .. run .. ':' .. url
  local up = string.match(call('HGET', P .. 'servers:' .. run, url) or '', '^up ')
  if up and call('ZSCORE', key, holder) then
    call('ZADD', key, NOW + lease, holder)
    call('PEXPIRE', key, lease * 2)
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
