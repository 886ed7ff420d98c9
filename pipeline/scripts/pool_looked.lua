#!lua flags=allow-oom
-- needs: pool
-- What a keeper saw of a server. Two looks without an answer make it down, one good look brings it back; its label says whether it is synced. One that
-- reports no label keeps the one that its trainer gave it until it starts anew. One that bears a label of the run's, and is another start than the one
-- that a trainer gave it to, bears it falsely (it started anew between the trainer's proof and its label, and that trainer died): nothing allows it.
-- Idempotent.
-- A server that its engine holds paused though the run is not (its trainer died in an update): with a label that the run allows it is told to go on;
-- else its weights are unknown, and the calls frozen there are aborted. One that does not say whether it is paused may be, from a pause of its run on
-- (`held`) until a keeper said that it had it go on.
-- ARGV: run, url, ms until the next look, 1 when alive, why not, label ('' = it reports none), 1 when paused (0 = not, '' = it does not say), started,
-- running, waiting, kv, kind, 1 when this keeper just had it go on
-- Returns {what it was, what it is: up, down, unsynced or gone; resume or ''}.
local run, url, alive = ARGV[1], ARGV[2], ARGV[4] == '1'
local key, r = server_key(run, url), pool_run(run)
local s = pool_server(run, url)
if not s.state then return {'gone', 'gone', ''} end
-- What is said of a server lives as long as its run, also of one that has got no job for a week: forgotten, it would be nobody's, for any run to take.
local lives_ms = call('PTTL', pool_run_key(run))
if s.state ~= 'gone' and lives_ms > 0 then
  keep(key, lives_ms)
  keep(P .. 'holds:' .. url, lives_ms)
end
-- a look that began before a pause ended saw an engine that was paused and bore no version: another one is due at once. An end that is yet to come was
-- by a clock that went back since, and tells nothing.
local began, over = call('HGET', key, 'looking'), call('HGET', pool_run_key(run), 'pause.over')
if began and over and tonumber(began) <= tonumber(over) and tonumber(over) <= NOW then
  call('ZADD', P .. 'looks', 'XX', NOW, run .. ' ' .. url)
  return {'up', 'up', ''}
end
call('ZADD', P .. 'looks', 'XX', NOW + tonumber(ARGV[3]), run .. ' ' .. url)
if r.is_away then return {'up', 'up', ''} end
local function standing(t) return s.state == 'gone' and 'gone' or t.alive == '0' and 'down' or not is_synced(r, t) and 'unsynced' or 'up' end
local was = standing(s)
call('HSET', key, 'looked', NOW)
if not alive then
  local fails = call('HINCRBY', key, 'fails', 1)
  call('HSET', key, 'why', ARGV[5])
  call('HSETNX', key, 'failing', NOW)
  if fails >= 2 then
    s.alive = '0'
    call('HSET', key, 'alive', '0')
  end
else
  local label, proven = ARGV[6], call('HGET', key, 'proven')
  local before = proven or s.started
  if label == '' then
    label = (before and before ~= ARGV[8]) and '' or s.ver or ''
  elseif proven and ARGV[8] ~= '' and proven ~= ARGV[8] and string.find(label, run .. '/', 1, true) == 1 then
    label = run .. '/updating-unproven'
  end
  call('HSET', key, 'alive', '1', 'fails', 0, 'why', '', 'ver', label, 'paused', ARGV[7], 'started', ARGV[8], 'running', ARGV[9],
    'waiting', ARGV[10], 'kv', ARGV[11], 'kind', ARGV[12], 'seen', NOW)
  call('HDEL', key, 'failing')
  s.alive, s.ver = '1', label
end
local is, act = standing(s), ''
-- Servers that came up one after the other: the first has all jobs, and they are long. It gives an eighth of what it has too much away from look to
-- look, so that nobody is overrun by prompts that it has never seen. Each look of each of many servers would ask for the load of all: what one found
-- stands for a while that grows with their number, 4 ms a server from 16 on.
if alive and is == 'up' then
  local load = call('ZCOUNT', leases_key(run, url), NOW, '+inf')
  local total, count = 0, 0
  if load > 4 then
    local field = 'load:' .. (s.model or '')
    local known = call('HGET', pool_run_key(run), field)
    local at, sum, servers = string.match(known or '', '^(%d+) (%d+) (%d+)$')
    local age = at and NOW - tonumber(at)
    if at and tonumber(servers) > 16 and age >= 0 and age < 4 * tonumber(servers) then
      total, count = tonumber(sum), tonumber(servers)
    else
      for _, other in ipairs(call('SMEMBERS', servers_key(run))) do
        local t = other == url and s or pool_server(run, other)
        if t.model == s.model and t.state == 'up' and not why_not(r, t) then
          total, count = total + call('ZCOUNT', leases_key(run, other), NOW, '+inf'), count + 1
        end
      end
      if count > 16 then call('HSET', pool_run_key(run), field, string.format('%.0f %d %d', NOW, total, count)) end
    end
  end
  local surplus = count > 0 and load > 1.5 * total / count + 4 and load - total / count or 0
  call('HSET', key, 'spill', math.ceil(surplus / 8))
end
if was ~= is then
  call('HSET', key, 'since', NOW)
  pool_changed(run)
end
if ARGV[13] == '1' and not r.is_paused then call('HDEL', key, 'held') end
local held = ARGV[7] == '' and call('HGET', key, 'held') == '1'
if alive and (held or (ARGV[7] == '1' and (r.ver or r.pause))) and not r.is_paused and s.shared ~= '1' then
  if is_synced(r, s) then
    act = 'resume'
  else
    for _, holder in ipairs(call('HKEYS', calls_key(run, url))) do abort_calls(run, url, holder) end
  end
end
return {was, is, act}
