#!lua flags=allow-oom
-- A job that INIT has begun, and whose sandbox is made from an image, goes into the INIT lane of the node that is to have that image (ADR 18, "Placing").
-- Fenced by (entry id, attempt). It costs no retry; a call whose reply was lost answers 'fenced' the second time.
-- ARGV: stream, entry id, job, attempt, node that asks, image
-- Returns {'here'} (the asker makes it), {'moved', node}, or {'fenced'}.
local PREFERRED = 2      -- nodes that unpack an image while they have room
local LANE_A_SLOT = 4    -- jobs in a lane for each slot of INIT there: more would wait for longer than an image takes
local HEARD_MS = 3600000 -- `nodes` names all that there ever were; which of them live is told by a key that expires
local LONG = 256         -- bytes of a name that is hashed once for each node
local short, eid, job, att, me, image = unpack(ARGV)
local h = job_hash(job, 'st', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cls', 'cx', 'spilled', 'failed', 'err.stage')
if h.st ~= 'running' or h.eid ~= eid or h.att ~= att then return {'fenced'} end
-- what was placed here is made here: ranks and rooms change all the time, and a job must not follow them
if h.cx or h.spilled or P .. short == stage_stream('init', nil, me) then return {'here'} end

local function slots_of(node, stage)
  local fields, total = redis.pcall('HGETALL', P .. 'n:' .. node .. ':' .. stage), 0
  for k = 1, #fields, 2 do
    if string.sub(fields[k], 1, 6) == 'slots:' then total = total + (tonumber(fields[k + 1]) or 0) end
  end
  return total
end
local function in_lane(node, stage)
  local length = redis.pcall('XLEN', stage_stream(stage, nil, node))
  return type(length) == 'number' and length or math.huge
end
local function serves(node)
  local classes = hash_or_nothing(P .. 'n:' .. node .. ':init', 'classes').classes
  return classes and string.find(' ' .. classes .. ' ', ' ' .. (h.cls or 'none') .. ' ', 1, true)
end
-- Jobs that a node can take: what its RUN has room for, what INIT has under way there counted, and not more than INIT gets to soon.
local function room_of(node, run_slots)
  local waiting = in_lane(node, 'init')
  return math.min(run_slots - in_lane(node, 'run'), LANE_A_SLOT * slots_of(node, 'init')) - waiting
end

-- Ranked first, and looked at from the best on: of hundreds of nodes a few are asked for. A hash is 40 characters, the name of its node follows.
if #image > LONG then image = redis.sha1hex(image) end
local ranked = redis.pcall('ZRANGEBYSCORE', P .. 'nodes', NOW - HEARD_MS, '+inf')
for i, node in ipairs(ranked) do ranked[i] = redis.sha1hex(image .. '/' .. node) .. node end
table.sort(ranked)
-- A job whose start failed tries the next nodes: else all its attempts were those of one node.
local passed, preferred = h['err.stage'] == 'init' and tonumber(h.failed) or 0, 0
for i = #ranked, 1, -1 do
  local node = string.sub(ranked[i], 41)
  local run_slots = serves(node) and slots_of(node, 'run') or 0
  if run_slots > 0 and passed > 0 then
    passed = passed - 1
  elseif run_slots > 0 then
    if node == me then return {'here'} end
    if room_of(node, run_slots) > 0 then
      make_ready(job, h, 'init', node)
      drop_entry(P .. short, 'init', eid)
      return {'moved', node}
    end
    preferred = preferred + 1
    if preferred == PREFERRED then break end
  end
end
return {'here'}
