#!lua flags=allow-oom
-- needs: ledger
-- A trainer has had steps of which Redis does not know (any more): it lost its last writes. The ledger is put where the trainer stands.
-- Steps from `low` to `high` are what the trainer had, whatever became of them here since: they go, and so does any other step that a group of theirs has joined.
-- Groups that joined those and that the trainer has not had find room in a later step. A group that it had is done with: its prompt is not drawn again, its
-- members that have not ended are cancelled. So is its prompt under whatever draw that is in flight, parked or in a step here: the draws differ where the
-- lost time gave a group up or dropped it. What of them has closed is accounted as given up. Fenced by incarnation; idempotent. The caller opens again what
-- it asked for.
-- ARGV: run, inc, low, high, then per group that the trainer had: id ('' = its prompt is done with under every draw), prompt, draw,
--       verdict (trained, filtered, dead)
-- Returns {'ok', steps that went, groups that were taken back (both with blanks between)}; or {'stale', inc}, {'closed', state}.
local run, inc, low, high = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local refusal = inc_refusal(run, inc)
if refusal then return refusal end
local rk, had, steps, groups = run_key(run), {}, {}, {}
for i = 5, #ARGV, 4 do had[ARGV[i]] = true end

local function take_back(grp)
  local gk = group_key(grp)
  local g = hash(gk, 'prompt', 'draw', 'verdict', 'rid')
  if g.verdict ~= 'informative' then return end
  call('HDEL', gk, 'verdict', 'why', 'accounted', 'rid')
  call('HSETNX', gk, 'parked', NOW)
  call('ZADD', parked_key(run), NOW, grp)
  call('HINCRBY', rk, 'groups.informative', -1)
  if g.rid then call('XDEL', results_key(run), g.rid) end
  local m = g.prompt and read_mark(run, g.prompt)
  if m and m.state == 'trained' and m.draw == tonumber(g.draw) then
    m.state = 'flying'
    write_mark(run, g.prompt, m)
    local body = call('GET', prompt_key(grp))
    if body then call('HSET', prompt_bodies_key(run), g.prompt, body) end
    call('HINCRBY', rk, 'prompts.trained', -1)
    count_epoch(run, g.prompt, 'trained', -1)
  end
  groups[#groups + 1] = grp
end

local function dissolve(k)
  local lines = call('HGETALL', step_groups_key(run, k))
  for i = 1, #lines, 2 do
    if not had[lines[i]] and string.match(lines[i + 1], '^informative|') then take_back(lines[i]) end
  end
  local rid = call('HGET', step_key(run, k), 'rid')
  if rid then call('XDEL', results_key(run), rid) end
  call('UNLINK', step_key(run, k), step_groups_key(run, k))
  call('ZREM', steps_key(run), k)
  steps[#steps + 1] = k
end

-- The draw that a prompt has here: one alone can be in flight, parked or in a step.
local function drawn(prompt, m) return run .. '.' .. prompt .. '.' .. m.draw end

local function joined_by_what_it_had(k)
  for i = 5, #ARGV, 4 do
    local m = read_mark(run, ARGV[i + 1])
    for _, grp in ipairs({ARGV[i], m and m.draw and drawn(ARGV[i + 1], m) or nil}) do
      local line = call('HGET', step_groups_key(run, k), grp)
      if line and string.match(line, '^informative|') then return true end
    end
  end
  return false
end

local open, ended = {}, 0
-- Another draw of a prompt that is done with: nobody trains on it.
local function give_up(grp)
  local gk = group_key(grp)
  local g = hash(gk, 'st', 'verdict')
  if g.st == 'open' then
    open[#open + 1] = grp
  elseif g.st and not g.verdict then
    call('HSETNX', gk, 'cx', 'redundant')
    call('HDEL', gk, 'parked')
    for _, key in ipairs({flying_key(run), parked_key(run)}) do call('ZREM', key, grp) end
    call('ZADD', P .. 'z:closed', NOW, grp)
    ended = ended + 1
  end
end

for _, k in ipairs(call('ZRANGEBYSCORE', steps_key(run), low, '+inf')) do
  if tonumber(k) <= high or joined_by_what_it_had(k) then dissolve(k) end
end
for i = 5, #ARGV, 4 do
  local grp, prompt, draw, verdict = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local m = read_mark(run, prompt)
  if not m then
    count_epoch(run, prompt, 'pushed', 1)
    call('HINCRBY', rk, 'prompts.pushed', 1)
    m = {state = 'reserve', draw = draw, redraws = 0, place = call('HINCRBY', rk, 'places', 1)}
  end
  if m.state == 'reserve' or m.state == 'flying' then
    if m.state == 'flying' and drawn(prompt, m) ~= grp then give_up(drawn(prompt, m)) end
    call('ZREM', reserve_key(run), prompt)
    call('HDEL', prompt_bodies_key(run), prompt)
    m.state, m.inc, m.draw = verdict, inc, math.max(m.draw, draw)
    write_mark(run, prompt, m)
    call('HINCRBY', rk, 'prompts.' .. verdict, 1)
    count_epoch(run, prompt, verdict, 1)
  end
  local g = grp ~= '' and hash(group_key(grp), 'st', 'verdict') or {}
  if g.st == 'open' then
    open[#open + 1] = grp
  elseif g.st and not g.verdict then
    -- what it made stays until the trainer acks it
    call('HSET', group_key(grp), 'verdict', verdict == 'trained' and 'informative' or verdict, 'why', 'its trainer had it', 'accounted', NOW)
    for _, key in ipairs({P .. 'z:closed', flying_key(run), parked_key(run)}) do call('ZREM', key, grp) end
  end
end
ended = ended + #give_up_groups(run, open, 'redundant', '0')
if #steps + ended + (#ARGV - 4) > 0 then
  find_first(run, '-inf')
  touch_ledger(run)
  raise_rev(run)
  wake('step_opened', run)
end
return {'ok', table.concat(steps, ' '), table.concat(groups, ' ')}
