-- Pauses of a run in the inference pool (ADR 13). Stands after pool.lua.

-- A trainer gave a server a label. `proven`: names the start of it that has the label, so no other start is believed with it (pool_looked).
local function label_server(key, label, started)
  call('HSET', key, 'ver', label)
  if started ~= '' then call('HSET', key, 'proven', started) else call('HDEL', key, 'proven') end
  keep(key, WEEK)
end

-- A pause is over, or lapsed and is forgotten now. One that lapsed with servers that have the label to come leaves that as the run's: it is honest.
local function end_pause(run)
  local rk = pool_run_key(run)
  local r = hash(rk, 'pause', 'pause.until', 'pause.to')
  if r.pause and r['pause.to'] and tonumber(r['pause.until'] or '0') <= NOW then
    for _, url in ipairs(call('SMEMBERS', servers_key(run))) do
      if call('HGET', server_key(run, url), 'ver') == r['pause.to'] then call('HSET', rk, 'ver', r['pause.to']) end
    end
  end
  call('HDEL', rk, 'pause', 'pause.inc', 'pause.since', 'pause.until', 'pause.why', 'pause.mode', 'pause.to')
end
