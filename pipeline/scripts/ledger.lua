-- Common to the scripts of the ledger: feeding, steps, launching, accounting. Stands after the other heads in scripts that say `-- needs: ledger`.
--
-- Each change of a run's ledger raises `rev` of r:<run>. A decision carries the incarnation and the rev it was made on, and is refused as 'moved'
-- when either is another: supervisors never act twice on one state.
--
-- A prompt's mark in pm:<run> is `<state> <incarnation> <draw> <redraws> <place>`; state: reserve, flying, trained, filtered, dead. Its place is
-- given once, at the first push, and is its score in the reserve. Prompts are taken lowest place first, so one that returns stands before all that
-- were never drawn.
local function steps_key(run) return P .. 'steps:' .. run end
local function step_groups_key(run, k) return P .. 'sg:' .. run .. ':' .. k end
local function reserve_key(run) return P .. 'p:' .. run end
local function prompt_bodies_key(run) return P .. 'pb:' .. run end
local function marks_key(run) return P .. 'pm:' .. run end
local function flying_key(run) return P .. 'fly:' .. run end
local function parked_key(run) return P .. 'ready:' .. run end
local function window_key(run) return P .. 'mon:' .. run end

-- Groups that are accounted while no step is open belong to the next one: they are kept under this name until it opens.
local NEXT_STEP = 'next'

local function moved(run, inc, rev)
  local r = hash(run_key(run), 'st', 'inc', 'rev')
  if not r.st then return {'closed', 'unknown'} end
  if r.inc ~= inc or r.rev ~= rev then return {'moved', r.inc, r.rev} end
  return nil
end

local function raise_rev(run) return call('HINCRBY', run_key(run), 'rev', 1) end

-- All keys of the ledger live as long as their run. k: a step whose keys were written, or nil.
local function touch_ledger(run, k)
  local ttl = tonumber(call('HGET', run_key(run), 'ttl_ms') or '604800000')
  for _, key in ipairs({steps_key(run), reserve_key(run), prompt_bodies_key(run), marks_key(run), flying_key(run), parked_key(run), window_key(run), results_key(run)}) do
    call('PEXPIRE', key, ttl)
  end
  if k then
    call('PEXPIRE', step_key(run, k), ttl)
    call('PEXPIRE', step_groups_key(run, k), ttl)
  end
end

local function wake(kind, run)
  call('XADD', P .. 's:reward', 'MAXLEN', '~', REWARD_MAXLEN, '*', 'kind', kind, 'run', run)
end

local function read_mark(run, prompt)
  local text = call('HGET', marks_key(run), prompt)
  if not text then return nil end
  local state, inc, draw, redraws, place = string.match(text, '^(%a+) (%d+) (%d+) (%d+) (%d+)$')
  return {state = state, inc = inc, draw = tonumber(draw), redraws = tonumber(redraws), place = tonumber(place)}
end

local function write_mark(run, prompt, m)
  call('HSET', marks_key(run), prompt, string.format('%s %s %d %d %d', m.state, m.inc, m.draw, m.redraws, m.place))
end

-- The prompt of a group goes back whole, as its next draw. Does nothing when that group does not hold its prompt any more.
local function return_prompt(run, g, redraws)
  local m = g.prompt and read_mark(run, g.prompt)
  if not m or m.state ~= 'flying' or m.draw ~= tonumber(g.draw) then return false end
  m.state, m.draw, m.redraws = 'reserve', m.draw + 1, m.redraws + redraws
  write_mark(run, g.prompt, m)
  call('ZADD', reserve_key(run), m.place, g.prompt)
  return true
end

-- Counts of an epoch's prompts, whose ids are e<epoch>-<row>: pushed = trained + filtered + dead + left.
local function count_epoch(run, prompt, what, by)
  local epoch = string.match(prompt, '^e(%d+)%-%d+$')
  if epoch then call('HINCRBY', run_key(run), 'epoch.' .. epoch .. '.' .. what, by) end
end

-- The prompt of a group is done with; its body goes.
local function finish_prompt(run, g, state)
  local m = g.prompt and read_mark(run, g.prompt)
  if not m or m.state ~= 'flying' or m.draw ~= tonumber(g.draw) then return end
  m.state = state
  write_mark(run, g.prompt, m)
  call('HDEL', prompt_bodies_key(run), g.prompt)
  call('HINCRBY', run_key(run), 'prompts.' .. state, 1)
  count_epoch(run, g.prompt, state, 1)
end

-- Steps that were reached in this or an earlier incarnation, are not acked, and brought no update in this one: lowest first.
local NEWEST_STEPS = 128
local function untrained_steps(run, inc)
  local out = {}
  for _, k in ipairs(call('ZREVRANGE', steps_key(run), 0, NEWEST_STEPS - 1)) do
    local s = hash(step_key(run, k), 'st', 'rid', 'trained')
    if s.st == 'reached' and s.trained ~= inc and s.rid and #call('XRANGE', results_key(run), s.rid, s.rid) > 0 then table.insert(out, 1, k) end
  end
  return out
end

-- Whether a member ended with something the policy did. Its time was measured: to cancel its group now would favour short ones.
local function has_finished_member(grp)
  if tonumber(call('HGET', group_key(grp), 'aw') or '0') > 0 then return true end -- one that awaits its reward was measured too
  for _, line in ipairs(call('HVALS', group_key(grp) .. ':m')) do
    local outcome = string.match(line, '^[^|]*')
    if outcome == 'ok' or outcome == 'model_failure' then return true end
  end
  return false
end

local function is_spared(grp, spare)
  if spare == '2' and tonumber(call('HGET', group_key(grp), 'begun') or '0') > 0 then return true end
  return spare ~= '0' and has_finished_member(grp)
end

-- Gives up groups in flight: their prompts return at once, members that nobody holds settle at once, one message tells the workers of the others.
-- Returns the ids of those that were given up. spare: which are left alone, by how they stand now: '0' none, '1' with a finished member, '2' with a
-- member that RUN has begun. by_caller: it settles the members.
local function give_up_groups(run, groups, reason, spare, by_caller)
  local out = {}
  for _, grp in ipairs(groups) do
    if call('ZSCORE', flying_key(run), grp) and not is_spared(grp, spare) then
      local g = hash(group_key(grp), 'prompt', 'draw', 'want', 'st')
      if g.st == 'open' then
        call('ZREM', flying_key(run), grp)
        call('HSET', group_key(grp), 'cx', reason)
        return_prompt(run, g, 0)
        for m = 0, by_caller and -1 or tonumber(g.want) - 1 do cancel_job(grp .. '.' .. m, reason) end
        out[#out + 1] = grp
      end
    end
  end
  if #out > 0 then
    tell_cancel('group', reason, out)
    call('HINCRBY', run_key(run), 'groups.given_up', #out)
  end
  return out
end

-- What keeps a run from having enough groups at work (pipeline/supervisor/shortage.py; '' = nothing): the time up to now goes to the oldest open
-- step, and what is said now holds from here on.
local function note_shortage(run, why)
  local r = hash(run_key(run), 'short', 'short.t', 'first')
  if r.short and r.first then call('HINCRBY', step_key(run, r.first), 'short.' .. r.short, math.max(0, NOW - tonumber(r['short.t']))) end
  if why == '' then
    call('HDEL', run_key(run), 'short', 'short.t')
  else
    call('HSET', run_key(run), 'short', why, 'short.t', NOW)
  end
end

-- The lowest open step stands in r:<run> as `first`, so that nobody reads the steps before it. `front`: since when a step is that.
local function find_first(run, from)
  for _, k in ipairs(call('ZRANGEBYSCORE', steps_key(run), from, '+inf')) do
    if call('HGET', step_key(run, k), 'st') == 'open' then
      call('HSET', run_key(run), 'first', k)
      call('HSETNX', step_key(run, k), 'front', NOW)
      return
    end
  end
  call('HDEL', run_key(run), 'first')
end

local SHORTAGES = {'paused', 'no_workers', 'broken', 'prompts', 'trainer', 'queue_full'}
local TOKEN_COUNTERS = {'tokens_kept', 'tokens_filtered', 'tokens_surplus', 'tokens_stale', 'tokens_cancelled', 'tokens_late', 'tokens_failed'}

-- A step as `end_step` wants it, up to now.
local function step_figures(run, k)
  if call('HGET', run_key(run), 'first') == k then note_shortage(run, call('HGET', run_key(run), 'short') or '') end
  return hash(step_key(run, k), 'st', 'how', 'cx', 'acc', 'target', 'n', 't', 'filtered', 'dropped', 'dead', 'cancelled', 'surplus', 'stale', 'front',
    'cut_ms', 'short.paused', 'short.no_workers', 'short.broken', 'short.prompts', 'short.trainer', 'short.queue_full', unpack(TOKEN_COUNTERS))
end

-- A step ends, with what joined it: its record is appended and it is open no more. s: from `step_figures`; how: full, short or cancelled;
-- redundant: groups given up with it; monitors: JSON, or ''; cx: why it was cancelled, or ''.
local function end_step(run, inc, k, s, how, redundant, monitors, cx)
  local joined, ids = {}, {}
  local lines = call('HGETALL', step_groups_key(run, k))
  for i = 1, #lines, 2 do
    local turn = string.match(lines[i + 1], '^informative|(%d+)|')
    if turn then joined[#joined + 1] = {tonumber(turn), lines[i]} end
  end
  table.sort(joined, function(a, b) return a[1] < b[1] end)
  for i, pair in ipairs(joined) do ids[i] = pair[2] end
  -- `watched_ms`: the time in which it was the oldest open step; `short.<reason>`: milliseconds of it in which too little was at work
  local figures = {'cut_ms', s.cut_ms or '', 'watched_ms', NOW - tonumber(s.front or s.t), 'monitors', monitors}
  for _, counter in ipairs(TOKEN_COUNTERS) do
    figures[#figures + 1], figures[#figures + 2] = counter, s[counter] or 0
  end
  for _, why in ipairs(SHORTAGES) do
    figures[#figures + 1], figures[#figures + 2] = 'short.' .. why, s['short.' .. why] or 0
  end
  local rid = call('XADD', results_key(run), '*', 'kind', 'step', 'run', run, 'k', k, 'groups', table.concat(ids, ' '), 'target', s.target, 'n', s.n,
    'short', how ~= 'full' and '1' or '', 'cx', cx, 'filtered', s.filtered or 0, 'dropped', s.dropped or 0, 'dead', s.dead or 0,
    'cancelled', s.cancelled or 0, 'surplus', s.surplus or 0, 'stale', s.stale or 0, 'redundant', redundant, 'took_ms', NOW - tonumber(s.t),
    'inc', inc, unpack(figures))
  call('HSET', step_key(run, k), 'st', 'reached', 'how', how, 'reached', NOW, 'rid', rid, 'redundant', redundant, 'monitors', monitors)
  if cx ~= '' then call('HSET', step_key(run, k), 'cx', cx) end
  call('HINCRBY', run_key(run), 'steps.reached', 1)
  if call('HGET', run_key(run), 'first') == k then find_first(run, k) end
  touch_ledger(run, k)
end
