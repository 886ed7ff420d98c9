#!lua flags=allow-oom
-- needs: pool
-- A worker met a server that is not well. `refused`: it could not connect; half of what makes a server down, the next look is the other half, so that
-- one node that is cut off takes a server from nobody. `label`: an answer bore a label that the run did not allow, so the server holds other weights;
-- not believed when the run's label has changed since the call began: then the server's has, too. Idempotent.
-- ARGV: run, url, refused or label, what came (an error; the label), oldest label that the run allowed when the call began ('' = any)
-- Returns {1 when it was noted}.
local run, url = ARGV[1], ARGV[2]
local key = server_key(run, url)
if call('EXISTS', key) == 0 then return {0} end
if ARGV[3] == 'label' then
  local s, r = pool_server(run, url), pool_run(run)
  if (r.ver or '') ~= ARGV[5] or s.shared == '1' then return {0} end
  call('HSET', key, 'ver', ARGV[4])
else
  if tonumber(call('HGET', key, 'fails') or '0') > 0 then return {0} end
  call('HSET', key, 'fails', 1, 'why', ARGV[4])
end
call('ZADD', P .. 'looks', 'XX', NOW, run .. ' ' .. url)
return {1}
