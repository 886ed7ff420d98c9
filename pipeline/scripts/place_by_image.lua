#!lua flags=allow-oom
-- A job that INIT has begun, and whose sandbox is made from an image, goes into the INIT lane of the node that is to have that image (ADR 18, "Placing").
-- Fenced by (entry id, attempt). It costs no retry; a call whose reply was lost answers 'fenced' the second time.
-- ARGV: stream, entry id, job, attempt, node that asks, image
-- Returns {'here'} (the asker makes it), {'moved', node}, or {'fenced'}.
local PREFERRED = 2      -- nodes that unpack an image while they have room
local LANE_A_SLOT = 4    -- jobs in a lane for each slot of INIT there: more would wait for longer than an image takes
local HEARD_MS = 3600000 -- `nodes` names all that there ever were; which of them live is told by a key that expires
local short, eid, job, att, me, image = unpack(ARGV)
local h = job_hash(job, 'st', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cls', 'cx', 'spilled')
if h.st ~= 'running' or h.eid ~= eid or h.att ~= att then return {'fenced'} end
if h.cx or h.spilled then return {'here'} end

local function slots_of(node, stage)
  local fields, total = call('HGETALL', P .. 'n:' .. node .. ':' .. stage), 0
  for k = 1, #fields, 2 do
    if string.sub(fields[k], 1, 6) == 'slots:' then total = total + (tonumber(fields[k + 1]) or 0) end
  end
  return total
end
local function in_lane(node, stage)
  local length = redis.pcall('XLEN', stage_stream(stage, nil, node))
  return type(length) == 'number' and length or math.huge
end
-- Jobs that a node can take: what its RUN has room for, what INIT has under way there counted, and not more than INIT gets to soon.
local function room_of(node)
  local waiting = in_lane(node, 'init')
  return math.min(slots_of(node, 'run') - in_lane(node, 'run'), LANE_A_SLOT * slots_of(node, 'init')) - waiting
end

local ranked = {}
for _, node in ipairs(call('ZRANGEBYSCORE', P .. 'nodes', NOW - HEARD_MS, '+inf')) do
  local classes = call('HGET', P .. 'n:' .. node .. ':init', 'classes')
  if classes and string.find(' ' .. classes .. ' ', ' ' .. (h.cls or 'none') .. ' ', 1, true) then
    ranked[#ranked + 1] = {redis.sha1hex(image .. '/' .. node), node}
  end
end
table.sort(ranked, function(a, b) return a[1] > b[1] end)
for i = 1, math.min(PREFERRED, #ranked) do
  local node = ranked[i][2]
  if node == me then return {'here'} end
  if room_of(node) > 0 then
    make_ready(job, h, 'init', node)
    drop_entry(P .. short, 'init', eid)
    return {'moved', node}
  end
end
return {'here'}
