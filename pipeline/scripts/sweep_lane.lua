#!lua flags=allow-oom
-- The lane of a node without live RUN workers: what waits there goes back to INIT, uncounted; an empty lane is deleted with its group.
-- Jobs that a worker of that node still holds are left to their leases.
-- ARGV: stream, node, most
-- Returns {sent back, left, 1 when deleted}.
local stream, node = P .. ARGV[1], ARGV[2]
if call('EXISTS', P .. 'n:' .. node .. ':run') == 1 then return {0, call('XLEN', stream), 0} end
local back = 0
for _, entry in ipairs(call('XRANGE', stream, '-', '+', 'COUNT', tonumber(ARGV[3]))) do
  local fields = {}
  for k = 1, #entry[2], 2 do fields[entry[2][k]] = entry[2][k + 1] end
  local h = hash(job_key(fields.job or ''), 'st', 'stage', 'src', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cls', 'node')
  if h.eid == entry[1] and h.src == ARGV[1] then
    if h.st == 'ready' then
      drop_entry(stream, 'run', entry[1])
      requeue(fields.job, h, 'init', 0)
      back = back + 1
    end
  else
    drop_entry(stream, 'run', entry[1])
  end
end
settle_up()
local left = call('XLEN', stream)
if left == 0 then
  call('DEL', stream)
  call('SREM', P .. 'streams', ARGV[1])
  return {back, 0, 1}
end
return {back, left, 0}
