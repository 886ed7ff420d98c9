#!lua flags=allow-oom
-- What waits in a node's lane and cannot be served there goes back to INIT, uncounted: all of it when the node has no live RUN workers (then an empty
-- lane is deleted with its group), else what was made in an earlier epoch of the node. Jobs that a worker still holds are left to their leases.
-- ARGV: stream, node, most
-- Returns {sent back, left, 1 when deleted}.
local stream, node = P .. ARGV[1], ARGV[2]
local epoch = call('HGET', P .. 'n:' .. node .. ':run', 'epoch')
local back = 0
for _, entry in ipairs(call('XRANGE', stream, '-', '+', 'COUNT', tonumber(ARGV[3]))) do
  local fields = {}
  for k = 1, #entry[2], 2 do fields[entry[2][k]] = entry[2][k + 1] end
  local h = job_hash(fields.job or '', 'st', 'stage', 'src', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cls', 'node', 'epoch')
  if h.eid == entry[1] and h.src == ARGV[1] then
    if h.st == 'ready' and h.epoch ~= epoch then
      requeue(fields.job, h, 'init', 0)
      drop_entry(stream, 'run', entry[1])
      back = back + 1
    end
  else
    drop_entry(stream, 'run', entry[1])
  end
end
settle_up()
local left = call('XLEN', stream)
if left == 0 and not epoch then
  call('DEL', stream)
  call('SREM', P .. 'streams', ARGV[1])
  return {back, 0, 1}
end
return {back, left, 0}
