#!lua flags=allow-oom
-- A node is alive, and (from RUN and INIT workers) has a lane that is read.
-- ARGV: node, epoch ('' = from a process that has no environments here), beat_ms to live, 1 when from a RUN worker, 1 when leaving, and of a process
--       that reads a lane, as far as it says so: stage, consumer, slots (0 = it claims nothing now), classes that it serves, blanks between
-- Returns {'ok'}.
local node, lane = ARGV[1], ARGV[6] and P .. 'n:' .. ARGV[1] .. ':' .. ARGV[6]
local says_slots = lane and ARGV[5] ~= '1' and ARGV[8] ~= '0'
if lane then
  local fields, others = call('HGETALL', lane), false
  local gone = says_slots and {} or {'slots:' .. ARGV[7], 'until:' .. ARGV[7]}
  for k = 1, #fields, 2 do
    local kind, consumer = string.match(fields[k], '^(%a+):(.*)$')
    -- one that was killed takes nothing back, and the others keep the key alive: its slots go when it has said nothing for as long as a node may
    if kind == 'until' and consumer ~= ARGV[7] and tonumber(fields[k + 1]) < NOW then
      gone[#gone + 1], gone[#gone + 2] = 'slots:' .. consumer, fields[k]
    elseif kind == 'slots' and consumer ~= ARGV[7] then
      others = true
    end
  end
  if #gone > 0 then call('HDEL', lane, unpack(gone)) end
  -- who reads no INIT lane any more must get nothing into it; the lane of RUN is judged by its epoch
  if ARGV[6] == 'init' and not says_slots and not others then call('DEL', lane) end
end
if ARGV[5] == '1' then
  if ARGV[4] == '1' and not lane then call('DEL', P .. 'n:' .. node .. ':run') end
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
if says_slots then
  call('HSET', lane, 'slots:' .. ARGV[7], ARGV[8], 'until:' .. ARGV[7], NOW + tonumber(ARGV[3]), 'classes', ARGV[9])
  call('PEXPIRE', lane, tonumber(ARGV[3]))
end
return {'ok'}
