#!lua flags=allow-oom
-- needs: ledger
-- Closed groups get their verdict; the first one stands. Each leaves one record in the results and one line in the step it was accounted to:
-- the one it joined, or the one that was the oldest open. A group that is informative while no step has room is parked until one opens, and gets
-- its record then. Trajectories that nobody will train on go at once; job hashes and records stay until they are acked.
-- Fenced by the run's incarnation and rev.
-- ARGV: run, inc, rev, then per group: id, verdict, why, step ('' = none open), want, valid, mean, spread, sampled, total, tokens of valid members,
--       tokens of failed members, tokens of cancelled members, rewards (comma separated, '' where not valid), first version, last version
-- Returns {'ok', rev, then per group 'done' | 'parked' | 'again' | 'gone' | 'full'}; or {'moved', inc, rev}, {'closed', state}.
local run, inc, rev = ARGV[1], ARGV[2], ARGV[3]
local refusal = moved(run, inc, rev)
if refusal then
  -- the run expired: nobody can read a record of its groups any more
  if refusal[1] == 'closed' then
    for i = 4, #ARGV, 16 do call('ZREM', P .. 'z:closed', ARGV[i]) end
  end
  return refusal
end
local rk, flying, parked = run_key(run), flying_key(run), parked_key(run)
local ttl = tonumber(call('HGET', rk, 'ttl_ms') or '604800000')
local out, touched, changed = {'ok', rev}, {}, false

local JUDGED_MOST = 512
-- What the filter rate is estimated from: halved when it is long, so that old groups are forgotten as the policy learns.
local function count_judged(informative)
  if informative then call('HINCRBY', rk, 'rate.informative', 1) end
  if call('HINCRBY', rk, 'rate.judged', 1) >= JUDGED_MOST then
    local r = hash(rk, 'rate.informative', 'rate.judged')
    call('HSET', rk, 'rate.informative', math.floor(tonumber(r['rate.informative'] or '0') / 2), 'rate.judged', math.floor(tonumber(r['rate.judged']) / 2))
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
  end
  call('UNLINK', unpack(keys))
end

local TOKENS = {informative = 'tokens_kept', filtered = 'tokens_filtered', dropped = 'tokens_failed', dead = 'tokens_failed',
  cancelled = 'tokens_cancelled', surplus = 'tokens_cancelled'}

for i = 4, #ARGV, 16 do
  local grp, verdict, why, step, want, valid, mean, spread, sampled, total = unpack(ARGV, i, i + 9)
  local good, failed, cut, rewards, v0, v1 = unpack(ARGV, i + 10, i + 15)
  local gk = group_key(grp)
  local g = hash(gk, 'run', 'inc', 'prompt', 'draw', 'want', 'verdict', 'step', 'parked', 'cutby')
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
    if call('HSETNX', gk, 'parked', NOW) == 1 then count_judged(true) end
    out[#out + 1] = 'parked'
  else
    local s = verdict == 'informative' and ours and hash(step_key(run, step), 'st', 'acc', 'target') or {}
    if verdict == 'informative' and ours and (s.st ~= 'open' or tonumber(s.acc) >= tonumber(s.target)) then
      out[#out + 1] = 'full'
    else
      leave()
      changed = true
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
          free_bodies(grp, tonumber(g.want))
          if verdict == 'filtered' or verdict == 'dead' then
            finish_prompt(run, g, verdict)
          else
            return_prompt(run, g, verdict == 'dropped' and 1 or 0)
          end
        end
        call('HSET', step_groups_key(run, k), grp, table.concat(line, '|'))
        call('HINCRBY', sk, TOKENS[verdict], good)
        call('HINCRBY', sk, 'tokens_failed', failed)
        call('HINCRBY', sk, 'tokens_cancelled', cut)
        if not g.parked and verdict ~= 'cancelled' and verdict ~= 'surplus' then count_judged(verdict == 'informative') end
        if g.cutby then call('HSET', step_key(run, g.cutby), 'cut_done', NOW) end
        touched[k] = true
        step = k
      end
      call('HINCRBY', rk, 'groups.' .. verdict, 1)
      local rid = call('XADD', results_key(run), '*', 'kind', 'group', 'run', run, 'grp', grp, 'prompt', g.prompt or '', 'draw', g.draw or '0',
        'verdict', verdict, 'why', why, 'step', step ~= NEXT_STEP and step or '', 'want', want, 'valid', valid, 'mean', mean, 'spread', spread,
        'sampled', sampled, 'total', total, 'rews', rewards, 'v0', v0, 'v1', v1, 'inc', g.inc or '0')
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
