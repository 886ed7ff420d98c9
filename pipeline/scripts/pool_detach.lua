#!lua flags=allow-oom
-- needs: pool
-- Servers leave a run. Calls in flight end by themselves; jobs go elsewhere with their next call. What is said of a server stands until nothing
-- of the run is left there that may have to be aborted (pool_due). Idempotent. ARGV: run, then urls
-- Returns {those that were there}.
local run, out = ARGV[1], {}
for i = 2, #ARGV do
  local url = ARGV[i]
  if call('SREM', servers_key(run), url) == 1 then
    out[#out + 1] = url
    if call('EXISTS', server_key(run, url)) == 1 then call('HSET', server_key(run, url), 'state', 'gone') end
    call('HDEL', P .. 'holds:' .. url, run)
  end
end
if #out > 0 then pool_changed(run) end
return out
