#!lua flags=allow-oom
-- A worker process that stopped cleanly gives up its name.
-- ARGV: consumer, boot
-- Returns {1} when it held it, else {0}.
local key = P .. 'w:' .. ARGV[1]
if call('HGET', key, 'boot') ~= ARGV[2] then return {0} end
call('DEL', key)
return {1}
