#!lua flags=allow-oom
-- needs: pool
-- Servers keep the jobs that they have and get no new ones, or get them again. Idempotent. ARGV: run, state (draining or up), then urls
-- Returns {those that the run has}.
local run, state, out = ARGV[1], ARGV[2], {}
for i = 3, #ARGV do
  local url = ARGV[i]
  if call('SISMEMBER', servers_key(run), url) == 1 then
    out[#out + 1] = url
    set_state(run, url, state)
    keep(server_key(run, url), WEEK)
  end
end
if #out > 0 then pool_changed(run) end
return out
