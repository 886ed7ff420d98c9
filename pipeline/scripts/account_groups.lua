#!lua flags=allow-oom
-- needs: ledger
-- Closed groups get their verdict; the first one stands. Each leaves one record in the results and one line in the step it was accounted to:
-- the one it joined, or the one that was the oldest open. A group that is informative while no step has room is parked until one opens, and gets
-- its record then. Trajectories that nobody will train on go at once; job hashes and records stay until they are acked.
-- Fenced by the run's incarnation and rev.
-- ARGV: run, inc, rev, then per group: id, verdict, why, step ('' = none open), want, valid, mean, spread, sampled, total, tokens by fate
--       (fate:count, comma separated), rewards (comma separated, '' where not valid), first version, last version, components (JSON),
--       lengths for the window of the monitors, 1 = its trajectories stay, 1 = infrastructure broke each of its members
-- Returns {'ok', rev, then per group 'done' | 'parked' | 'again' | 'gone' | 'full'}; or {'moved', inc, rev}, {'closed', state}.
local run, inc, rev = ARGV[1], ARGV[2], ARGV[3]
local refusal = moved(run, inc, rev)
if refusal then
  -- the run expired: nobody can read a record of its groups any more
  if refusal[1] == 'closed' then
    for i = 4, #ARGV, 18 do call('ZREM', P .. 'z:closed', ARGV[i]) end
  end
  return refusal
end
local rk, flying, parked = run_key(run), flying_key(run), parked_key(run)
local ttl = tonumber(call('HGET', rk, 'ttl_ms') or '604800000')
local out, touched, changed = {'ok', rev}, {}, false

local JUDGED_MOST = 512
-- Verdicts that say nothing about how many groups turn out informative.
local UNCOUNTED = {cancelled = true, surplus = true, stale = true}
-- What the filter rate is estimated from: halved when it is long, so that old groups are forgotten as the policy learns.
local function count_judged(informative)
  if informative then call('HINCRBY', rk, 'rate.informative', 1) end
  if call('HINCRBY', rk, 'rate.judged', 1) >= JUDGED_MOST then
    local r = hash(rk, 'rate.informative', 'rate.judged')
    call('HSET', rk, 'rate.informative', math.floor(tonumber(r['rate.informative'] or '0') / 2), 'rate.judged', math.floor(tonumber(r['rate.judged']) / 2))
  end
end

-- Groups in a row that infrastructure broke whole: pipeline/supervisor/ledger.py launches hardly any while there are many.
local function count_broken(is_broken, valid)
  if is_broken then
    call('HINCRBY', rk, 'broken', 1)
    call('HSET', rk, 'broken.t', NOW)
  elseif tonumber(valid) > 0 then
    call('HDEL', rk, 'broken', 'broken.t')
  end
end

local function free_bodies(grp, want)
  local keys = {prompt_key(grp)}
  for m = 0, want - 1 do
    local job = grp .. '.' .. m
    local h = hash(job_key(job), 'b.init', 'b.run', 'b.eval')
    for _, stage in ipairs(STAGES) do
      local att = h['b.' .. stage]
      if att then
        keys[#keys + 1] = body_key(job, att, stage)
        call('HDEL', job_key(job), 'b.' .. stage)
      end
    end
    if h['b.eval'] then keys[#keys + 1] = attached_key(job, h['b.eval']) end
  end
  in_pieces(keys, function(...) call('UNLINK', ...) end)
end

-- Tokens by what became of them, into the step and into the run; of a group that no step launched into the run alone.
local function count_tokens(sk, fates)
  for fate, tokens in string.gmatch(fates, '(%a+):(%d+)') do
    call('HINCRBY', rk, 'tok.' .. (sk and fate or 'outside'), tokens)
    if sk then call('HINCRBY', sk, 'tokens_' .. fate, tokens) end
  end
end

-- The newest closed groups, for the monitors: pipeline/supervisor/monitors.py reads the lines and gives the bounds. Ages are from the launch, and in
-- versions from the oldest token to what the run has now.
local WINDOW_MEMBERS, FEWEST_GROUPS, MOST_GROUPS = 8192, 32, 512
local function age_in_versions(v0)
  local oldest, now = string.match(v0, '^%d+%.(%d+)$'), call('HGET', rk, 'ver')
  return oldest and now and math.max(0, now - oldest) or nil
end
local function remember(verdict, prompt, age_ms, age_v, lengths, want)
  call('LPUSH', window_key(run), table.concat({verdict, prompt, age_ms, age_v or '', lengths}, '|'))
  call('LTRIM', window_key(run), 0, math.max(FEWEST_GROUPS, math.min(MOST_GROUPS, math.floor(WINDOW_MEMBERS / want))) - 1)
end

for i = 4, #ARGV, 18 do
  local grp, verdict, why, step, want, valid, mean, spread, sampled, total = unpack(ARGV, i, i + 9)
  local fates, rewards, v0, v1, components, lengths, keeps, broken = unpack(ARGV, i + 10, i + 17)
  local gk = group_key(grp)
  local g = hash(gk, 'run', 'inc', 'prompt', 'draw', 'want', 'verdict', 'step', 'parked', 'cutby', 't', 'closed')
  local ours = g.step ~= nil
  local function leave() call('ZREM', P .. 'z:closed', grp) call('ZREM', flying, grp) call('ZREM', parked, grp) end
  if not g.run then
    leave()
    changed = true
    out[#out + 1] = 'gone'
  elseif g.verdict then
    leave()
    out[#out + 1] = 'again'
  elseif ours and verdict == 'informative' and step == '' then
    leave()
    call('ZADD', parked, NOW, grp)
    changed = true
    if call('HSETNX', gk, 'parked', NOW) == 1 then
      count_judged(true)
      count_broken(false, valid)
    end
    out[#out + 1] = 'parked'
  else
    local s = verdict == 'informative' and ours and hash(step_key(run, step), 'st', 'acc', 'target') or {}
    if verdict == 'informative' and ours and (s.st ~= 'open' or tonumber(s.acc) >= tonumber(s.target)) then
      out[#out + 1] = 'full'
    else
      leave()
      changed = true
      local age_v = age_in_versions(v0)
      if ours then
        local k = step ~= '' and step or NEXT_STEP
        local sk = step_key(run, k)
        local line = {verdict, why, g.prompt, g.draw, want, valid, mean, spread, sampled, NOW}
        if verdict == 'informative' then
          -- the first field after the verdict of a group that joined is its turn within the step
          line[2] = call('HINCRBY', sk, 'acc', 1)
          finish_prompt(run, g, 'trained')
        else
          call('HINCRBY', sk, verdict, 1)
          if keeps ~= '1' then free_bodies(grp, tonumber(g.want)) end
          if verdict == 'filtered' or verdict == 'dead' then
            finish_prompt(run, g, verdict)
          else
            return_prompt(run, g, verdict == 'dropped' and 1 or 0)
          end
        end
        call('HSET', step_groups_key(run, k), grp, table.concat(line, '|'))
        count_tokens(sk, fates)
        remember(verdict, g.prompt or '', NOW - tonumber(g.t or NOW), age_v, lengths, tonumber(want))
        if not g.parked and not UNCOUNTED[verdict] then count_judged(verdict == 'informative') end
        if not g.parked then count_broken(broken == '1', valid) end
        local cut_at = g.cutby and call('HGET', step_key(run, g.cutby), 'reached')
        if cut_at and g.closed then
          local took = math.max(0, g.closed - cut_at)
          if took > tonumber(call('HGET', sk, 'cut_ms') or '-1') then call('HSET', sk, 'cut_ms', took) end
        end
        touched[k] = true
        step = k
      else
        count_tokens(nil, fates)
      end
      call('HINCRBY', rk, 'groups.' .. verdict, 1)
      local rid = call('XADD', results_key(run), '*', 'kind', 'group', 'run', run, 'grp', grp, 'prompt', g.prompt or '', 'draw', g.draw or '0',
        'verdict', verdict, 'why', why, 'step', step ~= NEXT_STEP and step or '', 'want', want, 'valid', valid, 'mean', mean, 'spread', spread,
        'sampled', sampled, 'total', total, 'rews', rewards, 'v0', v0, 'v1', v1, 'inc', g.inc or '0', 'comps', components, 'fates', fates,
        'age_ms', NOW - tonumber(g.t or NOW), 'age_v', age_v or '', 'kept', keeps == '1' and '1' or '')
      call('HSET', gk, 'verdict', verdict, 'why', why, 'accounted', NOW, 'rid', rid)
      call('PEXPIRE', gk, ttl)
      call('PEXPIRE', gk .. ':m', ttl)
      out[#out + 1] = 'done'
    end
  end
end
if changed then
  touch_ledger(run)
  for k in pairs(touched) do touch_ledger(run, k) end
  out[2] = raise_rev(run)
end
return out
