#!lua flags=allow-oom
-- Servers join a run, or what is said of them changes. One step, so that no list is left without its expiry. Idempotent.
-- KEYS[1] is the meta key of the pool's own tag.
-- ARGV: run, ttl_ms, then per server: url, `<state> <model> <version>`
-- Returns {servers that are new}.
local key = P .. 'servers:' .. ARGV[1]
local new = call('HSET', key, unpack(ARGV, 3))
keep(key, tonumber(ARGV[2]))
return {new}
