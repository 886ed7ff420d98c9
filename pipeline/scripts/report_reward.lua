#!lua flags=allow-oom
-- Rewards from outside. Fenced by the state of each job: the first report stands, and all others change nothing and are counted in r:<run>
-- (`rewards.<answer>`). A member of a group that waits for its hook keeps its reward and goes on waiting.
-- ARGV: run, inc ('0' = of a reporter that is not the run's trainer), then per report: job, attempt whose trajectory was judged ('' = any),
--       score, components (JSON, the score among them)
-- Returns per report 'accepted', 'duplicate', 'late' (it ended without), 'early' (it does not wait for one), 'superseded' (another attempt's
-- trajectory waits), 'unknown', or 'bounds:<low> to <high>'; or {'stale', inc}, {'closed', state} for all.
local run, inc = ARGV[1], ARGV[2]
local rk = run_key(run)
local r = hash(rk, 'st', 'inc')
if not r.st then return {'closed', 'unknown'} end
if inc ~= '0' and r.inc ~= inc then return {'stale', r.inc} end
local out = {}
for i = 3, #ARGV, 4 do
  local job, attempt, score, comps = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local h = job_hash(job, 'st', 'run', 'grp', 'n', 'task', 'att', 'stage', 'b.run', 'rewarded', 'dl', 'aw.rew', 'aw.comps', 'cx', 'inc')
  -- cancelled by somebody who came no further than the mark
  local cx = h.st == 'awaiting' and h.run == run and cancel_of(h)
  if cx then
    cancel_job(job, cx)
    h.st = 'done'
  end
  local answer
  if not h.st or h.run ~= run then answer = 'unknown'
  elseif h.st == 'done' then answer = h.rewarded and 'duplicate' or 'late'
  elseif h.st ~= 'awaiting' then answer = 'early'
  elseif attempt ~= '' and attempt ~= h['b.run'] then answer = 'superseded'
  elseif h.rewarded then answer = 'duplicate'
  elseif h['aw.rew'] ~= '' then answer = 'early'
  else
    local bounds = out_of_bounds(h.grp, 'score', score)
    if bounds then
      answer = 'bounds:' .. bounds
    else
      comps = joined(comps, h['aw.comps'])
      local g = (h.grp or '') ~= '' and hash_or_nothing(group_key(h.grp), 'hold', 'hooked') or {}
      if g.hold and not g.hooked then
        call('HSET', job_key(job), 'aw.rew', score, 'aw.comps', comps, 'rewarded', NOW)
        call('ZADD', P .. 'z:deadline', h.dl, job)
      else
        local ends, a = awaited(job)
        ends.rew, ends.comps = score, comps
        finish_awaiting(job, h, ends, a, 'rewarded', NOW)
      end
      answer = 'accepted'
    end
  end
  count(rk, 'rewards.' .. string.match(answer, '^%a+'), 1)
  out[#out + 1] = answer
end
return out
