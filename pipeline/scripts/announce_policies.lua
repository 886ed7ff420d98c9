#!lua flags=allow-oom
-- A supervisor says which informativeness policies it knows: trainers that ask for another are refused. Names that nobody said for a day go.
-- ARGV: name...
-- Returns {names}.
local key = P .. 'policies'
for _, name in ipairs(ARGV) do call('ZADD', key, NOW, name) end
call('ZREMRANGEBYSCORE', key, '-inf', NOW - 86400000)
return {call('ZCARD', key)}
