#!lua flags=allow-oom
-- What a launcher says of its node, whole; and what was asked of it. A key that is gone is written anew.
-- ARGV: node, boot, lease_ms, ms for which it is remembered, 1 when it gives the name up, then field, value, ...
-- Returns {'ok', size of INIT, RUN, EVAL that was asked ('' = none), '1' when it is to drain} or {'lost', host of the boot that has the name}.
local node, boot, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[4])
local key = P .. 'node:' .. node
local held = hash(key, 'boot', 'host', 'since', 'want.init', 'want.run', 'want.eval', 'drain')
if held.boot and held.boot ~= boot then return {'lost', held.host or ''} end
for i = 6, #ARGV, 2 do call('HSET', key, ARGV[i], ARGV[i + 1]) end
call('HSET', key, 'boot', ARGV[5] == '1' and '' or boot, 'beat', NOW, 'lease', ARGV[3], 'since', held.since or NOW)
call('PEXPIRE', key, keep_ms)
call('ZREMRANGEBYSCORE', P .. 'launchers', '-inf', NOW - keep_ms)
call('ZADD', P .. 'launchers', NOW, node)
call('PEXPIRE', P .. 'launchers', keep_ms)
return {'ok', held['want.init'] or '', held['want.run'] or '', held['want.eval'] or '', held.drain or ''}
