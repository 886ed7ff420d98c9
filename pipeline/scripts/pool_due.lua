#!lua flags=allow-oom
-- needs: pool
-- Which servers a keeper is to look at now. A look is a lease: of all keepers one looks at a server, about once a second; who dies over it is followed
-- by another. Assignments that ran out are swept here, and their calls stand in `aborts:` until the server said yes (pool_aborted): a keeper that
-- dies in between loses none. A server that left is forgotten when nothing of its run is left there. Nothing is judged while a run's engines are away.
-- ARGV: ms that a look may take, most looks, ms until one is due that has nothing to do now, ms after which an abort that nobody could do is given up
-- Returns per server {run, url, 1 when it is to be looked at, else only aborted, model, ids to abort...}.
-- Redis was away, or every keeper: what ran out meanwhile may be of processes that live, and renew it now. No lease is judged for as long as that was, a
-- minute at most: one can only have run out when it was longer than they need to renew.
local round = hash(P .. 'round', 'at', 'judges')
local away, judges = round.at and NOW - tonumber(round.at) or 0, tonumber(round.judges or '0')
if away > 2000 then judges = NOW + math.min(away, 60000) end
if judges > NOW + 60000 then judges = NOW end -- the clock went back
call('HSET', P .. 'round', 'at', NOW, 'judges', judges)
keep(P .. 'round', WEEK)
local out, sweeps = {}, 1000 -- leases at most, that thousands which ran out together hold nobody up; those left have the next look
-- The clock of Redis went back: nobody puts a look off for so long.
for _, pair in ipairs(call('ZRANGEBYSCORE', P .. 'looks', NOW + tonumber(ARGV[1]) + 60000, '+inf', 'LIMIT', 0, tonumber(ARGV[2]))) do
  call('ZADD', P .. 'looks', NOW, pair)
end
for _, pair in ipairs(call('ZRANGEBYSCORE', P .. 'looks', '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[2]))) do
  local run, url = string.match(pair, '^(%S+) (.+)$')
  local s = hash(server_key(run, url), 'state', 'model')
  local key, aborts = leases_key(run, url), {}
  for _, holder in ipairs(judges > NOW and {} or call('ZRANGEBYSCORE', key, '-inf', NOW, 'LIMIT', 0, sweeps)) do
    end_lease(run, url, holder)
    sweeps = sweeps - 1
  end
  local waiting = call('HGETALL', aborts_key(run, url))
  for i = 1, #waiting, 2 do
    if tonumber(waiting[i + 1]) < NOW - tonumber(ARGV[4]) then
      call('HDEL', aborts_key(run, url), waiting[i])
    elseif #aborts < 500 then
      aborts[#aborts + 1] = waiting[i]
    end
  end
  local is_left = not s.state or s.state == 'gone'
  local is_looked_at = not is_left and not pool_run(run).is_away
  if is_left and #aborts == 0 and call('ZCARD', key) == 0 then
    call('ZREM', P .. 'looks', pair)
    unlink(server_key(run, url))
  elseif is_looked_at or #aborts > 0 then
    call('ZADD', P .. 'looks', NOW + tonumber(ARGV[1]), pair)
    if is_looked_at then call('HSET', server_key(run, url), 'looking', NOW) end
    out[#out + 1] = {run, url, is_looked_at and '1' or '0', s.model or '', unpack(aborts)}
  else
    call('ZADD', P .. 'looks', NOW + tonumber(ARGV[3]), pair)
  end
end
if call('EXISTS', P .. 'looks') == 1 then keep(P .. 'looks', WEEK) end
return out
