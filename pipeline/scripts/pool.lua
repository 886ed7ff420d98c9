-- What the scripts of the inference pool have in common: names of keys, what a run allows, what can be said of a server, and how a lease ends.
-- KEYS[1] of all of them is the meta key of the pool's own tag. Protocol and invariants: docs/adr/0012-inference-pool.md.
local WEEK, HOUR = 604800000, 3600000
local function pool_run_key(run) return P .. 'run:' .. run end
local function servers_key(run) return P .. 'servers:' .. run end
local function server_key(run, url) return P .. 'srv:' .. run .. ':' .. url end
local function leases_key(run, url) return P .. 'as:' .. run .. ':' .. url end
local function calls_key(run, url) return P .. 'calls:' .. run .. ':' .. url end
local function aborts_key(run, url) return P .. 'aborts:' .. run .. ':' .. url end

-- What a run allows. `is_paused`: no call begins. `to`: the label to come of a pause that lapsed. Its trainer gave that label to servers that had the
-- new weights, so it is honest, and allowed beside `ver` until the next pause.
local function pool_run(run)
  local r = hash(pool_run_key(run), 'ver', 'pause', 'pause.until', 'pause.to', 'pause.why')
  r.is_paused = r.pause ~= nil and tonumber(r['pause.until'] or '0') > NOW
  r.is_away = r.is_paused and r['pause.why'] == 'away'
  r.to = r.pause and not r.is_paused and r['pause.to'] or nil
  return r
end
-- The oldest and the newest label that a run allows now; '' = any.
local function allowed_labels(r) return r.ver or '', r.to or r.ver or '' end

local function pool_server(run, url) return hash(server_key(run, url), 'model', 'state', 'alive', 'ver', 'shared', 'fails', 'started', 'spill') end
-- Weights that a trainer is changing just now bear a label that nothing allows, also in a run that has had no update yet.
local function is_synced(r, s)
  if s.shared == '1' then return true end
  if string.find(s.ver or '', '/updating-', 1, true) then return false end
  return not r.ver or s.ver == r.ver or (r.to ~= nil and s.ver == r.to)
end
-- Why a server takes no call; nil when it does. A draining one keeps the jobs that it has.
local function why_not(r, s)
  if s.state ~= 'up' and s.state ~= 'draining' then return 'gone' end
  if s.alive == '0' then return 'down' end
  if not is_synced(r, s) then return 'unsynced' end
  return nil
end

-- A server gets new jobs (up), or no more of them (draining). So it stands since now, unless it is down or unsynced all the while.
local function set_state(run, url, state)
  local s = pool_server(run, url)
  if s.state and s.state ~= state and (s.state == 'gone' or not why_not(pool_run(run), s)) then call('HSET', server_key(run, url), 'since', NOW) end
  call('HSET', server_key(run, url), 'state', state)
end

-- Whoever waits for something of this run is to look again.
local function pool_changed(run) call('HINCRBY', pool_run_key(run), 'rev', 1) keep(pool_run_key(run), WEEK) end

-- What a run has lives for a week from its last use.
local function keep_run(run)
  keep(pool_run_key(run), WEEK)
  keep(servers_key(run), WEEK)
end

-- Calls of a lease that ends are still running, as far as is known: they are to be aborted at the server, and stand there until it said yes.
local function abort_calls(run, url, holder)
  local ids = call('HGET', calls_key(run, url), holder)
  if not ids then return end
  for id in string.gmatch(ids, '%S+') do call('HSETNX', aborts_key(run, url), id, NOW) end
  keep(aborts_key(run, url), WEEK)
  call('HDEL', calls_key(run, url), holder)
  call('ZADD', P .. 'looks', NOW, run .. ' ' .. url)
  keep(P .. 'looks', WEEK)
end
local function end_lease(run, url, holder)
  abort_calls(run, url, holder)
  return call('ZREM', leases_key(run, url), holder)
end
