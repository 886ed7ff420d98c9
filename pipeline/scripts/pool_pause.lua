#!lua flags=allow-oom
-- needs: pool
-- needs: pauses
-- A trainer takes the pause of its run: when this has answered no call begins (pool_begin_call), and every call in flight stands in `calls:`. A lease,
-- renewed by pool_hold. A second holder is refused while the lease lives. Fenced by incarnation: a later one ends the renewals of an earlier one, and has
-- the pause when its lease is over, not before: until then that one may load weights. An earlier one is refused for good.
-- `held` stands of each server until a keeper had it go on: of an engine that does not say that it is paused nothing else is known (pool_looked).
-- The same holder again may say what else it is for. Shared servers hold no policy: not concerned.
-- ARGV: run, inc, holder, why (update, leaving or away), mode (keep, abort or wait), label to come ('' = none), lease_ms
-- Returns {'ok', then per server, by address: url, model, kind, control, state, label, started}; {'held', why, for how long it has been held, for how long it
-- is if nobody renews it (ms), incarnation of its holder};
-- or {'stale', inc}.
local run, inc, holder = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local rk = pool_run_key(run)
local r = hash(rk, 'inc', 'pause', 'pause.inc', 'pause.until', 'pause.since', 'pause.why')
if tonumber(r.inc or '0') > inc then return {'stale', r.inc} end
local lives = r.pause and tonumber(r['pause.until']) > NOW
call('HSET', rk, 'inc', inc)
keep_run(run)
if lives and r.pause ~= holder then
  return {'held', r['pause.why'], NOW - tonumber(r['pause.since']), tonumber(r['pause.until']) - NOW, r['pause.inc']}
end
if not (lives and r.pause == holder) then
  end_pause(run)
  call('HSET', rk, 'pause', holder, 'pause.since', NOW)
end
call('HSET', rk, 'pause.inc', inc, 'pause.why', ARGV[4], 'pause.mode', ARGV[5], 'pause.until', NOW + tonumber(ARGV[7]))
if ARGV[6] ~= '' then call('HSET', rk, 'pause.to', ARGV[6]) else call('HDEL', rk, 'pause.to') end
local out, urls = {'ok'}, call('SMEMBERS', servers_key(run))
table.sort(urls)
for _, url in ipairs(urls) do
  local s = hash(server_key(run, url), 'model', 'kind', 'control', 'state', 'ver', 'started', 'shared')
  if s.state and s.shared ~= '1' then
    call('HSET', server_key(run, url), 'held', 1)
    for _, word in ipairs({url, s.model or '', s.kind or '', s.control or '', s.state, s.ver or '', s.started or ''}) do out[#out + 1] = word end
  end
end
return out
