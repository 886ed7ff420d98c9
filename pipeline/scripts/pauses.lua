-- Pauses of a run in the inference pool (ADR 13). Stands after pool.lua.

-- How long a run has been paused in its life, ms, a pause that goes on included; one that lapsed counts until it did. A call that stood meanwhile does
-- not pay for it: what this grew by since it began is no time of its job's.
local function paused_ms(run)
  local r = hash(pool_run_key(run), 'paused.ms', 'pause.since', 'pause.until')
  local ms = tonumber(r['paused.ms'] or '0')
  if not r['pause.since'] then return ms end
  return ms + math.max(0, math.min(NOW, tonumber(r['pause.until'] or '0')) - tonumber(r['pause.since']))
end

-- A pause is over, or lapsed and is forgotten now. One that lapsed with servers that have the label to come leaves that as the run's: it is honest.
local function end_pause(run)
  local rk = pool_run_key(run)
  local ms, r = paused_ms(run), hash(rk, 'pause', 'pause.until', 'pause.to')
  if not r.pause then return end
  if r['pause.to'] and tonumber(r['pause.until'] or '0') <= NOW then
    for _, url in ipairs(call('SMEMBERS', servers_key(run))) do
      if call('HGET', server_key(run, url), 'ver') == r['pause.to'] then call('HSET', rk, 'ver', r['pause.to']) end
    end
  end
  call('HSET', rk, 'paused.ms', ms)
  call('HDEL', rk, 'pause', 'pause.inc', 'pause.since', 'pause.until', 'pause.why', 'pause.mode', 'pause.to')
end
