#!lua flags=allow-oom
-- What the keys of this namespace are laid out as is written once, by whoever comes first, and compared by all who come later. Idempotent.
-- Called on shard 0, which every process knows of however many shards it believes in.
-- ARGV: layout version, number of shards, a word that no other namespace has
-- Returns {layout version, number of shards, word of this namespace} as they stand.
call('HSETNX', KEYS[1], 'layout', ARGV[1])
call('HSETNX', KEYS[1], 'shards', ARGV[2])
call('HSETNX', KEYS[1], 'fleet', ARGV[3])
return call('HMGET', KEYS[1], 'layout', 'shards', 'fleet')
