#!lua flags=allow-oom
-- A worker process takes its stable name. Refused while another boot holds it, unless the caller knows that one to be dead.
-- ARGV: stage, consumer, boot, lock_ms, node, slots, pid, version, dead boot ('' = none known)
-- Returns {'ok'} or {'taken', boot, ms until it lapses}.
local stage, consumer, boot = ARGV[1], ARGV[2], ARGV[3]
local key = P .. 'w:' .. consumer
local held = call('HGET', key, 'boot')
if held and held ~= boot and held ~= ARGV[9] then return {'taken', held, call('PTTL', key)} end
call('HSET', key, 'boot', boot, 'beat', NOW, 'since', NOW, 'stage', stage, 'node', ARGV[5], 'slots', ARGV[6], 'pid', ARGV[7], 'version', ARGV[8],
  'skew_ms', 0, 'idle_why', '')
call('PEXPIRE', key, tonumber(ARGV[4]))
return {'ok'}
