#!lua flags=allow-oom
-- One process at a time does the janitor's round. Each call of any janitor is stamped: after a gap of more than two periods in which none came
-- (Redis was away, or all of them were) no lease, heartbeat or deadline is judged for one full lease. A lease is renewed each quarter of it, so a
-- gap that could have run one out is one of more than 0.7 leases: where leases are short, that is what counts.
-- A stamp from the future means that the server's clock went back: the same. Gaps add up in `away_ms`: time in which no trainer could be heard.
-- ARGV: who, period_ms, lease_ms
-- Returns {1 when it is your round, 1 while quiet, wake-ups that could not be written so far}.
local key = P .. 'janitor'
local j = hash(key, 'who', 'at', 'seen', 'quiet_until')
local period, lease = tonumber(ARGV[2]), tonumber(ARGV[3])
local at, seen = tonumber(j.at or '0'), tonumber(j.seen or '0')
if seen > NOW or NOW - seen > math.max(1.5 * period, math.min(2 * period + 1000, 0.7 * lease)) then
  call('HSET', key, 'quiet_until', NOW + lease)
  j.quiet_until = NOW + lease
  if seen > 0 and seen < NOW then call('HINCRBY', key, 'away_ms', NOW - seen) end
end
call('HSET', key, 'seen', NOW)
if j.who and j.who ~= ARGV[1] and at <= NOW and NOW - at < 2 * period then return {0, 0, 0} end
call('HSET', key, 'who', ARGV[1], 'at', NOW)
return {1, tonumber(j.quiet_until or '0') > NOW and 1 or 0, tonumber(call('HGET', KEYS[1], 'wake_ups_lost') or '0')}
