#!lua flags=allow-oom
-- needs: pool
-- How many calls are in flight at servers of a run that is paused; with `abort` keepers are asked to end them at the servers. A call stays in `calls:`
-- until its worker says that it ended, so one that arrives at its server after the abort is asked for again: call this until it says none. Calls of a
-- process that died are swept with its lease. ARGV: run, 1 = abort, then urls
-- Returns per url: calls in flight, aborts that the server has not taken yet.
local run, out = ARGV[1], {}
for i = 3, #ARGV do
  local url, calls, new = ARGV[i], 0, 0
  for _, ids in ipairs(call('HVALS', calls_key(run, url))) do
    for id in string.gmatch(ids, '%S+') do
      calls = calls + 1
      if ARGV[2] == '1' then new = new + call('HSETNX', aborts_key(run, url), id, NOW) end
    end
  end
  if new > 0 then
    keep(aborts_key(run, url), WEEK)
    call('ZADD', P .. 'looks', 'XX', NOW, run .. ' ' .. url)
  end
  out[#out + 1], out[#out + 2] = calls, call('HLEN', aborts_key(run, url))
end
return out
