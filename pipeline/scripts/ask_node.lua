#!lua flags=allow-oom
-- Asks something of the launcher that has a node's name now.
-- ARGV: node, then field, value, ... (`want.<stage>`, `drain`)
-- Returns {'ok'} or {'gone', its last state ('' = nobody ever had the name), its last beat}.
local key = P .. 'node:' .. ARGV[1]
local held = hash(key, 'boot', 'beat', 'lease', 'state')
if not held.boot or held.boot == '' or (tonumber(held.beat) or 0) + (tonumber(held.lease) or 0) < NOW then
  return {'gone', held.state or '', held.beat or ''}
end
for i = 2, #ARGV, 2 do call('HSET', key, ARGV[i], ARGV[i + 1]) end
return {'ok'}
