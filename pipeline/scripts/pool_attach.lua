#!lua flags=allow-oom
-- needs: pool
-- Servers join a run, or what is said of them changes; a drained one is up again. All or none. Idempotent.
-- An address belongs to one run: its policy is loaded there. Only those who all call it shared (a frozen model) may have it together. One that a run has
-- as its own does not become shared by being given again, nor the other way: it would be left out of the run's updates, or be put under its gate.
-- ARGV: run, 1 when calls wait for the run's first weight update, then per server: url, model, control, 1 when shared, label ('' = not said)
-- Returns {'ok', servers that are new} or {'taken', url, run that has it, own or shared}.
local run = ARGV[1]
for i = 3, #ARGV, 5 do
  local holders = call('HGETALL', P .. 'holds:' .. ARGV[i])
  for j = 1, #holders, 2 do
    local as = ARGV[i + 3] == '1' and 'shared' or 'own'
    if (holders[j] == run and holders[j + 1] ~= as) or (holders[j] ~= run and not (as == 'shared' and holders[j + 1] == 'shared')) then
      return {'taken', ARGV[i], holders[j], holders[j + 1]}
    end
  end
end
local new = 0
for i = 3, #ARGV, 5 do
  local url, shared = ARGV[i], ARGV[i + 3]
  local key = server_key(run, url)
  call('HSET', P .. 'holds:' .. url, run, shared == '1' and 'shared' or 'own')
  keep(P .. 'holds:' .. url, WEEK)
  new = new + call('SADD', servers_key(run), url)
  set_state(run, url, 'up')
  call('HSET', key, 'model', ARGV[i + 1], 'control', ARGV[i + 2], 'shared', shared)
  call('HSETNX', key, 'since', NOW)
  if ARGV[i + 4] ~= '' then
    call('HSET', key, 'ver', ARGV[i + 4])
    call('HDEL', key, 'proven') -- who says so loaded it
  end
  keep(key, WEEK)
  call('ZADD', P .. 'looks', NOW, run .. ' ' .. url)
end
if ARGV[2] == '1' then call('HSETNX', pool_run_key(run), 'ver', run .. '/none') end
keep(P .. 'looks', WEEK)
keep_run(run)
pool_changed(run)
return {'ok', new}
