#!lua flags=allow-oom
-- Deletes a consumer whose name nobody holds and that has nothing pending; checked and done in one step, because deleting a consumer
-- discards its pending entries.
-- ARGV: stream, group, consumer
-- Returns {1} when deleted, else {0}.
local stream = P .. ARGV[1]
if call('EXISTS', P .. 'w:' .. ARGV[3]) == 1 then return {0} end
local list = redis.pcall('XINFO', 'CONSUMERS', stream, ARGV[2])
if type(list) ~= 'table' or list.err then return {0} end
for _, c in ipairs(list) do
  local info = {}
  for k = 1, #c, 2 do info[c[k]] = c[k + 1] end
  if info.name == ARGV[3] and info.pending == 0 then
    call('XGROUP', 'DELCONSUMER', stream, ARGV[2], ARGV[3])
    return {1}
  end
end
return {0}
