#!lua flags=allow-oom
-- The group of a stage is there, from the first entry of its stream; made when it is missing, with the stream. Above maxmemory too: a worker that
-- starts there drains.
-- ARGV: stream, group
-- Returns {'ok'}.
local made = redis.pcall('XGROUP', 'CREATE', P .. ARGV[1], ARGV[2], '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
call('SADD', P .. 'streams', ARGV[1])
return {'ok'}
