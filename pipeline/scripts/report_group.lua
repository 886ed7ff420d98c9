#!lua flags=allow-oom
-- What a group's hook says of all its members, in one step; the group closes by the last of them. Fenced by the state of the group: the first report
-- stands, others change nothing and are counted in r:<run> (`hooks.<answer>`). A reward that a member has stands; components are joined, and those
-- it has stand too. A member that gets no reward here and has none goes on waiting for its own, with the components that it got.
-- ARGV: run, inc ('0' = of a reporter that is not the run's trainer), group, then per member: number, score ('' = none), components (JSON, '' = none)
-- Returns {'accepted' | 'duplicate' | 'late' (it closed without) | 'early' (it is not held yet) | 'unknown' | 'bounds:<member> <low> to <high>'};
-- or {'stale', inc}, {'closed', state}.
local run, inc, grp = ARGV[1], ARGV[2], ARGV[3]
local rk, gk = run_key(run), group_key(grp)
local r = hash(rk, 'st', 'inc')
if not r.st then return {'closed', 'unknown'} end
if inc ~= '0' and r.inc ~= inc then return {'stale', r.inc} end
local function answered(answer)
  count(rk, 'hooks.' .. string.match(answer, '^%a+'), 1)
  return {answer}
end
local g = hash_or_nothing(gk, 'st', 'run', 'want', 'held', 'hooked', 'cx', 'inc')
if not g.st or g.run ~= run then return answered('unknown') end
if g.hooked then return answered(g.hooked == 'deadline' and 'late' or 'duplicate') end
if g.st ~= 'open' or g.cx or cancel_of_run(run, g.inc) then return answered('late') end
if not g.held then return answered('early') end
local given = {}
for i = 4, #ARGV, 3 do
  local n, score = ARGV[i], ARGV[i + 1]
  local bounds = score ~= '' and out_of_bounds(grp, 'score', score)
  if bounds then return answered('bounds:' .. n .. ' ' .. bounds) end
  given[n] = {score = score, comps = ARGV[i + 2]}
end
call('HSET', gk, 'hooked', NOW)
end_hold(grp, run)
for m = 0, tonumber(g.want) - 1 do
  local job, said = grp .. '.' .. m, given[tostring(m)]
  local h = job_hash(job, 'st', 'run', 'grp', 'n', 'task', 'att', 'stage')
  if h.st == 'awaiting' then
    local ends, a = awaited(job)
    if said then
      if ends.rew == '' then ends.rew = said.score end
      ends.comps = joined(said.comps, ends.comps)
    end
    if ends.rew ~= '' then
      finish_awaiting(job, h, ends, a, 'rewarded', NOW)
    else
      call('HSET', job_key(job), 'aw.comps', ends.comps)
    end
  end
end
return answered('accepted')
