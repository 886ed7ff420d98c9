#!lua flags=allow-oom
-- needs: pool
-- A RUN process says how many jobs of a (run, model) may act there, and hears what it needs to decide the next time: what all such processes allow,
-- and how busy the servers are (docs/adr/0015-adaptive-concurrency.md). What it says stands for a while; with a limit of 0 it is gone. Idempotent.
-- ARGV: run, model ('' = any), who, ms that it stands, limit, bound of the limit, jobs that act, jobs that are held
-- Returns {1 when the run is paused, sum of limits, sum of bounds, then per usable server of the model: url, running, waiting, kv, ms since it answered
-- a look (-1 = never)}.
local run, model, stands_ms = ARGV[1], ARGV[2], tonumber(ARGV[4])
local key, mine = P .. 'places:' .. run, ARGV[3] .. ' ' .. model
if tonumber(ARGV[5]) > 0 then
  call('HSET', key, mine, table.concat({ARGV[5], ARGV[6], ARGV[7], ARGV[8], string.format('%.0f', NOW + stands_ms)}, ' '))
  keep(key, stands_ms)
else
  call('HDEL', key, mine)
end
local limits, bounds, said = 0, 0, call('HGETALL', key)
for i = 1, #said, 2 do
  local limit, bound, until_ms = string.match(said[i + 1], '^(%d+) (%d+) %d+ %d+ (%d+)$')
  if not until_ms or tonumber(until_ms) <= NOW then
    call('HDEL', key, said[i])
  elseif string.match(said[i], '^%S+ (.*)$') == model then
    limits, bounds = limits + tonumber(limit), bounds + tonumber(bound)
  end
end
local r = pool_run(run)
local out = {r.is_paused and 1 or 0, limits, bounds}
for _, url in ipairs(call('SMEMBERS', servers_key(run))) do
  local s = hash(server_key(run, url), 'model', 'state', 'alive', 'ver', 'shared', 'running', 'waiting', 'kv', 'seen', 'paused')
  if (model == '' or s.model == model) and s.state == 'up' and s.paused ~= '1' and not why_not(r, s) then
    local age_ms = s.seen and NOW - tonumber(s.seen) or -1
    for _, word in ipairs({url, s.running or '0', s.waiting or '0', s.kv or '-1', age_ms}) do out[#out + 1] = word end
  end
end
return out
