#!lua flags=allow-oom
-- An operator changes what a run may have, while it runs: share among runs, bound of jobs in flight, pause. What that allows is admitted at once.
-- ARGV: run, weight or '', quota or '', paused ('', 0, 1), admit window
-- Returns {'ok', state, weight, quota, paused} or {'closed', 'unknown'}.
local run = ARGV[1]
local rk = run_key(run)
if not hash(rk, 'st').st then return {'closed', 'unknown'} end
if ARGV[2] ~= '' then call('HSET', rk, 'weight', ARGV[2]) end
if ARGV[3] ~= '' then call('HSET', rk, 'quota', ARGV[3]) end
if ARGV[4] == '1' then
  call('HSET', rk, 'paused', 1)
elseif ARGV[4] == '0' then
  call('HDEL', rk, 'paused')
end
for _, cls in ipairs(call('SMEMBERS', P .. 'classes')) do admit(cls, tonumber(ARGV[5])) end
local r = hash(rk, 'st', 'weight', 'quota', 'paused')
return {'ok', r.st, r.weight or '1', r.quota or '0', r.paused or '0'}
