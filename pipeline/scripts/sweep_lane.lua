#!lua flags=allow-oom
-- What waits in a node's lane and cannot be served there goes back to INIT's common stream, uncounted: all of it when nobody reads the lane (then an
-- empty one is deleted with its group), else from a lane of RUN what was made in an earlier epoch of the node, and from one of INIT what is of a class
-- that its node serves no more, or has waited there too long: any node makes that one (ADR 18). Jobs that a worker still holds are left to their leases.
-- ARGV: stream, node, most
-- Returns {sent back, left, 1 when deleted}.
local stream, node = P .. ARGV[1], ARGV[2]
local SPILL_MS = 10000       -- longer than the starts before it take
local BUSY_SPILL_MS = 120000 -- while its node makes others of the lane: they unpack an image, mostly the one that this job wants too
local stage = string.match(ARGV[1], '^s:(%a+)')
local is_init = stage == 'init'
local reader = hash_or_nothing(P .. 'n:' .. node .. ':' .. stage, 'classes', 'epoch')[is_init and 'classes' or 'epoch']
local pending = is_init and redis.pcall('XPENDING', stream, stage) or {}
local is_busy = type(pending[1]) == 'number' and pending[1] > 0
local back, held, most = 0, 0, tonumber(ARGV[3])
local function sweep(entry)
  local fields = {}
  for k = 1, #entry[2], 2 do fields[entry[2][k]] = entry[2][k + 1] end
  local h = job_hash(fields.job or '', 'st', 'stage', 'src', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cls', 'node', 'epoch')
  if h.eid == entry[1] and h.src == ARGV[1] then
    local has_waited = is_init and NOW - tonumber(string.match(entry[1], '^%d+')) >= (is_busy and BUSY_SPILL_MS or SPILL_MS)
    local is_due = not reader or h.epoch ~= reader
    if reader and is_init then
      is_due = has_waited or not string.find(' ' .. reader .. ' ', ' ' .. (h.cls or 'none') .. ' ', 1, true)
    end
    if h.st == 'ready' and is_due then
      requeue(fields.job, h, 'init', 0)
      if has_waited then call('HSET', job_key(fields.job), 'spilled', 1) end
      drop_entry(stream, stage, entry[1])
      back = back + 1
    elseif h.st == 'running' then
      held = held + 1
    end
  else
    drop_entry(stream, stage, entry[1])
  end
end
local first = call('XRANGE', stream, '-', '+', 'COUNT', most)
for _, entry in ipairs(first) do sweep(entry) end
settle_up()
-- What workers hold stands in front, and may fill a page for as long as its work takes: what waits begins behind what was delivered last.
local groups = #first == most and held > 0 and redis.pcall('XINFO', 'GROUPS', stream) or {}
for _, group in ipairs(groups) do
  local info = {}
  for k = 1, #group, 2 do info[group[k]] = group[k + 1] end
  if info.name == stage then
    for _, entry in ipairs(call('XRANGE', stream, '(' .. info['last-delivered-id'], '+', 'COUNT', most)) do sweep(entry) end
  end
end
settle_up()
local left = call('XLEN', stream)
if left == 0 and not reader then
  call('DEL', stream)
  call('SREM', P .. 'streams', ARGV[1])
  return {back, 0, 1}
end
return {back, left, 0}
