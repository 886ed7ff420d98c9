#!lua flags=allow-oom
-- A job gets the server of its run and model that has fewest live assignments; the one it has, when it has one. An assignment is a lease.
-- The servers of a run that calls them are not forgotten: their list lives for a week from each call, at least.
-- A pinned job has one server for good, whatever the load: that of its number among the servers sorted by address. It waits for that one.
-- Load is counted from live leases, so nothing drifts when a process dies. KEYS[1] is the meta key of the pool's own tag.
-- ARGV: run, model ('' = any), holder (job:attempt), lease_ms, pin ('' = none, else a whole number), then servers that are not to be taken
-- Returns {server, version, live assignments before} or {} when no server of that run and model is up.
local run, model, holder, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local servers, avoided, pin = call('HGETALL', P .. 'servers:' .. run), {}, tonumber(ARGV[5])
if pin then
  local attached = {}
  for i = 1, #servers, 2 do
    local of_model = string.match(servers[i + 1], '^%a+ (%S*) ')
    if model == '' or of_model == model then attached[#attached + 1] = {servers[i], servers[i + 1]} end
  end
  if #attached == 0 then return {} end
  table.sort(attached, function(a, b) return a[1] < b[1] end)
  servers = attached[pin % #attached + 1]
end
for i = 6, #ARGV do avoided[ARGV[i]] = true end
local best, best_load, best_version
for i = 1, #servers, 2 do
  local url = servers[i]
  local state, of_model, version = string.match(servers[i + 1], '^(%a+) (%S*) (.*)$')
  local key = P .. 'as:' .. run .. ':' .. url
  if avoided[url] then
    call('ZREM', key, holder)
  elseif state == 'up' and (model == '' or of_model == model) then
    call('ZREMRANGEBYSCORE', key, '-inf', NOW)
    local load = call('ZCARD', key)
    if call('ZSCORE', key, holder) then
      best, best_load, best_version = url, load - 1, version
      break
    end
    if not best or load < best_load or (load == best_load and url < best) then best, best_load, best_version = url, load, version end
  end
end
if not best then return {} end
local key = P .. 'as:' .. run .. ':' .. best
call('ZADD', key, NOW + lease, holder)
keep(P .. 'servers:' .. run, 604800000)
call('PEXPIRE', key, lease * 2)
return {best, best_version, best_load}
