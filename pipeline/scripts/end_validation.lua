#!lua flags=allow-oom
-- The trainer has what it wants of a validation: it is marked before its groups go, so that whoever comes after a trainer that dies in between drops
-- what is left of it. Fenced by incarnation; idempotent.
-- ARGV: run, inc, index, serial
-- Returns {'ok'}; or {'stale', inc}, {'closed', state}.
local run, inc, index = ARGV[1], ARGV[2], ARGV[3]
local refusal = inc_refusal(run, inc)
if refusal then return refusal end
local key = P .. 'vals:' .. run
local state, serial, rest = string.match(call('HGET', key, index) or '', '^(%a+) (%d+) (.*)$')
if state == 'open' and serial == ARGV[4] then call('HSET', key, index, 'acked ' .. serial .. ' ' .. rest) end
return {'ok'}
