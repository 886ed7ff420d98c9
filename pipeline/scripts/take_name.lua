#!lua flags=allow-oom
-- A worker process takes its stable name. Refused while another boot holds it, unless the caller knows that one to be dead.
-- ARGV: consumer, boot, lock_ms, node, stage, slots, pid, version, dead boot ('' = none known)
-- Returns {'ok'} or {'taken', boot, ms until it lapses}.
local key = P .. 'w:' .. ARGV[1]
local held = call('HGET', key, 'boot')
if held and held ~= ARGV[2] and held ~= ARGV[9] then return {'taken', held, call('PTTL', key)} end
call('HSET', key, 'boot', ARGV[2], 'beat', NOW, 'since', NOW, 'node', ARGV[4], 'stage', ARGV[5], 'slots', ARGV[6], 'pid', ARGV[7],
  'version', ARGV[8])
call('PEXPIRE', key, tonumber(ARGV[3]))
return {'ok'}
