#!lua flags=allow-oom
-- A node is alive, and (from a RUN worker) has a lane that is read.
-- ARGV: node, epoch ('' = from a process that has no environments here), beat_ms to live, 1 when from a RUN worker, 1 when leaving
-- Returns {'ok'}.
local node = ARGV[1]
if ARGV[5] == '1' then
  if ARGV[4] == '1' then call('DEL', P .. 'n:' .. node .. ':run') end
  return {'ok'}
end
call('ZADD', P .. 'nodes', NOW, node)
call('HSET', P .. 'n:' .. node, 'beat', NOW)
if ARGV[2] ~= '' then call('HSET', P .. 'n:' .. node, 'epoch', ARGV[2]) end
call('PEXPIRE', P .. 'n:' .. node, tonumber(ARGV[3]))
if ARGV[4] == '1' then
  call('HSET', P .. 'n:' .. node .. ':run', 'epoch', ARGV[2])
  call('PEXPIRE', P .. 'n:' .. node .. ':run', tonumber(ARGV[3]))
end
return {'ok'}
