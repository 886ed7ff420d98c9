#!lua flags=allow-oom
-- A worker process that stopped cleanly gives up its name and, when nothing is pending, its consumers.
-- ARGV: consumer, boot, stage, stream...
-- Returns {consumers deleted}.
local key = P .. 'w:' .. ARGV[1]
if call('HGET', key, 'boot') ~= ARGV[2] then return {0} end
call('DEL', key)
local gone = 0
for i = 4, #ARGV do
  local list = redis.pcall('XINFO', 'CONSUMERS', P .. ARGV[i], ARGV[3])
  if type(list) == 'table' and not list.err then
    for _, c in ipairs(list) do
      local info = {}
      for k = 1, #c, 2 do info[c[k]] = c[k + 1] end
      if info.name == ARGV[1] and info.pending == 0 then
        call('XGROUP', 'DELCONSUMER', P .. ARGV[i], ARGV[3], ARGV[1])
        gone = gone + 1
      end
    end
  end
end
return {gone}
