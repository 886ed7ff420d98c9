#!lua flags=allow-oom
-- needs: pool
-- needs: pauses
-- The holder of a pause is done: the run's label, the labels of its servers and the end of the pause are one step, before the engines go on, so what
-- begins afterwards is checked against the new label. Fenced by the lease. Idempotent by the name of what is done.
-- ARGV: run, holder, what is done (a name of its own), label that the run allows from now on ('' = as it is), 1 when the pause goes on (its engines are
-- away still), then per server: url, label, the start of it that has that label ('' = it does not say)
-- Returns {'ok'}, {'again'} or {'lost', who holds it now ('' = nobody)}.
local run, holder, done = ARGV[1], ARGV[2], ARGV[3]
local rk = pool_run_key(run)
local r = hash(rk, 'pause', 'pause.until', 'pause.done')
if r['pause.done'] == done then return {'again'} end
if r.pause ~= holder or tonumber(r['pause.until']) <= NOW then return {'lost', r.pause ~= holder and r.pause or ''} end
call('HSET', rk, 'pause.done', done, 'pause.over', NOW)
if ARGV[4] ~= '' then call('HSET', rk, 'ver', ARGV[4]) end
if ARGV[5] == '1' then call('HDEL', rk, 'pause.to') else end_pause(run) end
for i = 6, #ARGV, 3 do
  local key = server_key(run, ARGV[i])
  if call('EXISTS', key) == 1 then
    label_server(key, ARGV[i + 1], ARGV[i + 2])
    call('HSET', key, 'alive', 1, 'fails', 0)
    call('HDEL', key, 'failing')
  end
end
keep_run(run)
pool_changed(run)
return {'ok'}
