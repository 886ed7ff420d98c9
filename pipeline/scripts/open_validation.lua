#!lua flags=allow-oom
-- A trainer asks for a validation under an index of its own, or for the next free one. Idempotent: the same index is the same validation, with the pin
-- of the first time. One of a history that the trainer gave up by going back is begun anew, under a new serial, so that its ids are new too.
-- A line of vals:<run> is `<state> <serial> <incarnation> <digest> <pin>`; state: open, acked.
-- ARGV: run, inc, index ('' = the next), digest of the request, incarnation in which this history began, version ('' = any, 'pinned', or a label)
-- Returns {'open', index, serial, pin ('' = none known)}, {'acked', index}, {'other', index} (another request has it), {'unversioned'}; or
-- {'stale', inc}, {'closed', state}.
local run, inc, index, digest, base, version = unpack(ARGV, 1, 6)
local refusal = run_refusal(run, inc)
if refusal then return refusal end
local rk, key = run_key(run), P .. 'vals:' .. run
if index == '' then
  repeat index = call('HINCRBY', rk, 'val.next', 1) until call('HEXISTS', key, index) == 0
end
local state, serial, began, was, pin = string.match(call('HGET', key, index) or '', '^(%a+) (%d+) (%d+) (%S+) (%S*)$')
if state and tonumber(began) >= tonumber(base) then
  if was ~= digest then return {'other', index} end
  if state == 'acked' then return {'acked', index} end
  return {'open', index, serial, pin}
end
pin = version
if version == '' or version == 'pinned' then
  local number = call('HGET', rk, 'ver')
  pin = number and inc .. '.' .. number or ''
  if version == 'pinned' and pin == '' then return {'unversioned'} end
end
serial = call('HINCRBY', rk, 'val.serial', 1)
call('HSET', key, index, table.concat({'open', serial, inc, digest, pin}, ' '))
keep(key, tonumber(hash(rk, 'ttl_ms').ttl_ms))
return {'open', index, serial, pin}
