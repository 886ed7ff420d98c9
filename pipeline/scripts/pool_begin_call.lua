#!lua flags=allow-oom
-- needs: pool
-- Model calls begin, and stand in `calls:` until they end: who pauses the run sees all of them. The lease is renewed. Idempotent by call id.
-- ARGV: run, lease_ms, then per call: server, holder, call id (no spaces)
-- Returns {oldest label that the run allows now, newest ('' = any), then per call: ok, label of the server's weights; in place of ok: shared (it may,
-- and what the run allows does not concern that server), or why not: paused, gone (the server or the lease), down, unsynced,
-- crowded (others have much less to do: the job is to be assigned anew, pool_looked says how many are)}.
local run, lease = ARGV[1], tonumber(ARGV[2])
local r, read = pool_run(run), {}
local lowest, highest = allowed_labels(r)
local out = {lowest, highest}
for i = 3, #ARGV, 3 do
  local url, holder, id = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local s = read[url] or pool_server(run, url)
  read[url] = s
  local score = call('ZSCORE', leases_key(run, url), holder)
  local no = (r.is_paused and 'paused') or why_not(r, s) or ((not score or tonumber(score) <= NOW) and 'gone') or nil
  if not no and tonumber(s.spill or '0') > 0 then
    s.spill, no = s.spill - 1, 'crowded'
    call('HINCRBY', server_key(run, url), 'spill', -1)
  end
  if not no then
    local key, calls = leases_key(run, url), calls_key(run, url)
    local ids = call('HGET', calls, holder) or ''
    if not string.find(' ' .. ids .. ' ', ' ' .. id .. ' ', 1, true) then
      call('HSET', calls, holder, ids == '' and id or ids .. ' ' .. id)
    end
    call('ZADD', key, NOW + lease, holder)
    keep(key, HOUR)
    keep(calls, HOUR)
  end
  out[#out + 1], out[#out + 2] = no or (s.shared == '1' and 'shared') or 'ok', s.ver or ''
end
return out
