#!lua flags=allow-oom
-- Assignments end. KEYS[1] is the meta key of the pool's own tag.
-- ARGV: run, then per assignment: server, holder
-- Returns {released}.
local released = 0
for i = 2, #ARGV, 2 do released = released + call('ZREM', P .. 'as:' .. ARGV[1] .. ':' .. ARGV[i], ARGV[i + 1]) end
return {released}
