#!lua
-- needs: ledger
-- Prompts from the front of the reserve become groups in flight: the bound, the taking and the accepting of all members are one step, fenced by
-- the run's incarnation and rev, so two supervisors never launch twice. Group ids are <run>.<prompt>.<draw>.
-- A reserve that has fewer than asked for is announced once, until prompts are pushed. A prompt whose body is gone is dead, with a note.
-- No allow-oom: above maxmemory the server itself refuses.
-- ARGV: run, inc, rev, step, most, bound of groups in flight, admit window
-- Returns {'ok', rev, launched, announced 0|1}; or {'moved', inc, rev}, {'closed', state}, {'full', why, retry_after_ms}, {'template', id}.
local run, inc, rev, k = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local refusal = moved(run, inc, rev) or run_refusal(run, inc)
if refusal then return refusal end
local rk, reserve, bodies = run_key(run), reserve_key(run), prompt_bodies_key(run)
local s = hash(step_key(run, k), 'st', 'n', 'tpl', 'task', 'cls', 'pri', 'wall_ms', 'mf', 'ml', 'res', 'recovery', 'version',
  'on_stale', 'max_staleness', 'group_deadline_s')
if s.st ~= 'open' then return {'moved', inc, rev} end
local n, most = tonumber(s.n), math.min(tonumber(ARGV[5]), tonumber(ARGV[6]) - call('ZCARD', flying_key(run)))
local prompts = most > 0 and call('ZRANGE', reserve, 0, most - 1) or {}
local bytes = 0
for _, prompt in ipairs(prompts) do bytes = bytes + call('HSTRLEN', bodies, prompt) end
local full = #prompts > 0 and memory_refusal(bytes + #prompts * n * tonumber(s.res))
if full then return {'full', full, 2000} end
local ttl_ms = tonumber(call('HGET', rk, 'ttl_ms'))
if #prompts > 0 and call('PEXPIRE', template_key(run, s.tpl), tonumber(s.wall_ms) + ttl_ms) == 0 then return {'template', s.tpl} end
local c = {run = run, inc = inc, tpl = s.tpl, task = s.task, cls = s.cls, pri = tonumber(s.pri), wall_ms = tonumber(s.wall_ms), ttl_ms = ttl_ms,
  mf = s.mf, ml = s.ml, res = tonumber(s.res), recovery = s.recovery}
local launched, lost = 0, 0
for _, prompt in ipairs(prompts) do
  local m, body = read_mark(run, prompt), call('HGET', bodies, prompt)
  call('ZREM', reserve, prompt)
  if m and body then
    while call('EXISTS', group_key(run .. '.' .. prompt .. '.' .. m.draw)) == 1 or was_done(run, run .. '.' .. prompt .. '.' .. m.draw) do
      m.draw = m.draw + 1
    end
    local grp = run .. '.' .. prompt .. '.' .. m.draw
    m.state, m.inc = 'flying', inc
    write_mark(run, prompt, m)
    accept_unit(c, grp, n, body, prompt, m.draw, s.version or '')
    call('HSET', group_key(grp), 'step', k, 'redraws', m.redraws, 'place', m.place)
    call('ZADD', flying_key(run), NOW, grp)
    local deadline_s = tonumber(s.group_deadline_s or '0')
    if deadline_s > 0 then
      call('HSET', group_key(grp), 'late_at', NOW + math.floor(deadline_s * 1000))
      call('HSET', rk, 'deadlines', '1')
    end
    -- `begin` looks at the ages of a group only where this stands
    if s.on_stale == 'drop' then for m = 0, n - 1 do call('HSET', job_key(grp .. '.' .. m), 'drop', s.max_staleness) end end
    launched = launched + 1
  else
    lost = lost + 1
    if m then
      m.state = 'dead'
      write_mark(run, prompt, m)
      call('HINCRBY', rk, 'prompts.dead', 1)
      count_epoch(run, prompt, 'dead', 1)
    end
    call('XADD', results_key(run), '*', 'kind', 'note', 'run', run, 'note', 'prompt_lost', 'prompt', prompt, 'step', k, 'inc', inc)
  end
end
if launched > 0 then
  call('HINCRBY', rk, 'groups.launched', launched)
  admit(s.cls, tonumber(ARGV[7]))
end
local announced = 0
local missing = most - launched - lost
if missing > 0 and call('HGET', rk, 'ended') ~= inc and call('HSETNX', rk, 'need', missing) == 1 then
  announced = 1
  call('XADD', results_key(run), '*', 'kind', 'note', 'run', run, 'note', 'need_prompts', 'want', missing, 'step', k, 'inc', inc)
  wake('need_prompts', run)
end
if launched + announced + lost > 0 then
  touch_ledger(run, k)
  rev = raise_rev(run)
end
return {'ok', rev, launched, announced}
