#!lua
-- needs: ledger
-- A step is asked for. Idempotent by index.
-- A newer incarnation finds a step as it was left: one that is open goes on with what it has, under the new specification; one that was reached
-- and not acked is 'reached', and its results come again. One that was opened before the trainer went back, or whose record was acked, is begun
-- anew, and with it fall all steps after it, and what was open before it. A step whose informativeness policy no living supervisor knows is refused; when none has said lately what it knows, nothing is
-- known.
-- ARGV: run, inc, index, template id, template body, wall_ms, base (incarnation in which the trainer went back last, 0 = never), then pairs of field
--       and value of the step's hash
-- Returns {'opened' | 'open' | 'reached'}; or {'stale', inc}, {'closed', state}, {'policy', names that are known...}.
local run, inc, k, base = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[7])
local refusal = run_refusal(run, inc)
if refusal then return refusal end
local rk, sk = run_key(run), step_key(run, k)
local s = hash(sk, 'st', 'inc', 'rid')
if s.inc == inc then return {s.st} end
local is_lost = s.st and tonumber(s.inc) < base
if s.st == 'reached' and not is_lost and #call('XRANGE', results_key(run), s.rid, s.rid) > 0 then return {'reached'} end
local ANNOUNCED_MS = 30000
local known = call('ZRANGEBYSCORE', P .. 'policies', NOW - ANNOUNCED_MS, '+inf')
for i = 8, #ARGV, 2 do
  if ARGV[i] == 'policy' and #known > 0 then
    local said = tonumber(call('ZSCORE', P .. 'policies', ARGV[i + 1]) or '0')
    if said < NOW - ANNOUNCED_MS then return {'policy', unpack(known)} end
  end
end
-- A trainer that went back to a point that Redis has lost stands behind steps that are open here: nobody will ask for them.
local first = call('HGET', rk, 'first')
if first and tonumber(first) < tonumber(k) then
  for _, earlier in ipairs(call('ZRANGEBYSCORE', steps_key(run), first, '(' .. k)) do
    local e = hash(step_key(run, earlier), 'st', 'inc')
    if e.st == 'open' and tonumber(e.inc) < base then
      call('UNLINK', step_key(run, earlier), step_groups_key(run, earlier))
      call('ZREM', steps_key(run), earlier)
    end
  end
  find_first(run, first)
end
if s.st == 'reached' or is_lost then
  for _, later in ipairs(call('ZRANGEBYSCORE', steps_key(run), k, '+inf')) do
    if call('HGET', step_key(run, later), 'inc') ~= inc then
      call('UNLINK', step_key(run, later), step_groups_key(run, later))
      call('ZREM', steps_key(run), later)
    end
  end
  s = {}
end
if not s.st and call('EXISTS', step_key(run, NEXT_STEP)) == 1 then
  call('RENAME', step_key(run, NEXT_STEP), sk)
  if call('EXISTS', step_groups_key(run, NEXT_STEP)) == 1 then call('RENAME', step_groups_key(run, NEXT_STEP), step_groups_key(run, k)) end
end
call('SET', template_key(run, ARGV[4]), ARGV[5], 'PX', tonumber(ARGV[6]) + tonumber(call('HGET', rk, 'ttl_ms')))
call('HSET', sk, 'st', 'open', 'inc', inc, 'tpl', ARGV[4], 'wall_ms', ARGV[6], unpack(ARGV, 8))
call('HSETNX', sk, 'acc', 0)
call('HSETNX', sk, 't', NOW)
call('ZADD', steps_key(run), k, k)
first = call('HGET', rk, 'first')
if not first or tonumber(k) < tonumber(first) then
  call('HSET', rk, 'first', k)
  call('HSETNX', sk, 'front', NOW)
end
touch_ledger(run, k)
raise_rev(run)
wake('step_opened', run)
return {'opened'}
