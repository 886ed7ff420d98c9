#!lua flags=allow-oom
-- What the keys of this namespace are laid out as is written once, by whoever comes first, and compared by all who come later. Idempotent.
-- Called on shard 0, which every process knows of however many shards it believes in.
-- ARGV: layout version, number of shards
-- Returns {layout version, number of shards} as they stand.
call('HSETNX', KEYS[1], 'layout', ARGV[1])
call('HSETNX', KEYS[1], 'shards', ARGV[2])
return call('HMGET', KEYS[1], 'layout', 'shards')
