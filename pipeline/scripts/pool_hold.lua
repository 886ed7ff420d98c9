#!lua flags=allow-oom
-- needs: pool
-- needs: pauses
-- The pause of a run lives on for another lease, and the pool learns which labels its holder gave to servers. One that lapsed is lost, though nobody else
-- took it: calls may have begun since. One that a later incarnation asked for is not renewed any more. ARGV: run, holder, lease_ms, then per server: url, label,
-- the start of it that has that label ('' = it does not say)
-- Returns {'ok'} or {'lost', who holds it now ('' = nobody)}.
local run, holder = ARGV[1], ARGV[2]
local r = hash(pool_run_key(run), 'pause', 'pause.until', 'pause.inc', 'inc')
if r.pause ~= holder or tonumber(r['pause.until']) <= NOW then return {'lost', r.pause ~= holder and r.pause or ''} end
if tonumber(r.inc) > tonumber(r['pause.inc']) then return {'lost', r.inc .. '-'} end
call('HSET', pool_run_key(run), 'pause.until', NOW + tonumber(ARGV[3]))
keep_run(run)
for i = 4, #ARGV, 3 do
  local key = server_key(run, ARGV[i])
  if call('EXISTS', key) == 1 then label_server(key, ARGV[i + 1], ARGV[i + 2]) end
end
return {'ok'}
