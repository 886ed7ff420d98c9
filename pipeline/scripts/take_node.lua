#!lua flags=allow-oom
-- A launcher takes the name of its node. Refused while another boot holds it and has spoken within its lease, unless the caller knows that one to be dead.
-- What an earlier launcher said, and what was asked of it, is forgotten. Idempotent by boot.
-- ARGV: node, boot, lease_ms, dead boot ('' = none known), ms for which it is remembered
-- Returns {'ok'} or {'taken', its host, its pid, its last beat, ms until it lapses}.
local key = P .. 'node:' .. ARGV[1]
local held = hash(key, 'boot', 'beat', 'lease', 'host', 'pid')
local other = held.boot and held.boot ~= '' and held.boot ~= ARGV[2] and held.boot ~= ARGV[4]
local left = (tonumber(held.beat) or 0) + (tonumber(held.lease) or 0) - NOW
if other and left > 0 then return {'taken', held.host or '', held.pid or '', held.beat, left} end
if held.boot ~= ARGV[2] then
  call('DEL', key)
  call('HSET', key, 'boot', ARGV[2], 'since', NOW, 'beat', NOW, 'lease', ARGV[3], 'state', 'starting')
end
call('PEXPIRE', key, tonumber(ARGV[5]))
call('ZADD', P .. 'launchers', NOW, ARGV[1])
call('PEXPIRE', P .. 'launchers', tonumber(ARGV[5]))
return {'ok'}
