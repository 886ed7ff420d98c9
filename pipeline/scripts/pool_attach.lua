#!lua flags=allow-oom
-- needs: pool
-- Servers join a run, or what is said of them changes; a drained one is up again. All or none. Idempotent.
-- An address belongs to one run: its policy is loaded there. Only those who all call it shared (a frozen model) may have it together.
-- ARGV: run, 1 when calls wait for the run's first weight update, then per server: url, model, control, 1 when shared, label ('' = not said)
-- Returns {'ok', servers that are new} or {'taken', url, run that has it}.
local run = ARGV[1]
for i = 3, #ARGV, 5 do
  local holder, mine = call('GET', P .. 'holds:' .. ARGV[i]), ARGV[i + 3] == '1' and '*' or run
  if holder and holder ~= mine then return {'taken', ARGV[i], holder} end
end
local new = 0
for i = 3, #ARGV, 5 do
  local url, shared = ARGV[i], ARGV[i + 3]
  local key = server_key(run, url)
  call('SET', P .. 'holds:' .. url, shared == '1' and '*' or run, 'PX', WEEK)
  new = new + call('SADD', servers_key(run), url)
  call('HSET', key, 'model', ARGV[i + 1], 'control', ARGV[i + 2], 'shared', shared, 'state', 'up')
  call('HSETNX', key, 'since', NOW)
  if ARGV[i + 4] ~= '' then call('HSET', key, 'ver', ARGV[i + 4]) end
  keep(key, WEEK)
  call('ZADD', P .. 'looks', NOW, run .. ' ' .. url)
end
if ARGV[2] == '1' then call('HSETNX', pool_run_key(run), 'ver', run .. '/none') end
keep(P .. 'looks', WEEK)
keep_run(run)
pool_changed(run)
return {'ok', new}
