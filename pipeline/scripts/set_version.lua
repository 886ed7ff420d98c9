#!lua flags=allow-oom
-- needs: ledger
-- The trainer says which version the policy has from now on. Fenced by incarnation; within one it never goes back. Idempotent by number.
-- Each rise after the first setting of an incarnation is the update that a step brought: the oldest reached one that has none yet is trained.
-- ARGV: run, inc, number
-- Returns {'ok', number}; or {'back', number that stands}, {'stale', inc}, {'closed', state}.
local run, inc, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
local refusal = run_refusal(run, inc)
if refusal then return refusal end
local rk = run_key(run)
local was = tonumber(call('HGET', rk, 'ver') or '-1')
if number < was then return {'back', was} end
if number > was then
  call('HSET', rk, 'ver', ARGV[3])
  if was >= 0 then
    local k = untrained_steps(run, inc)[1]
    if k then call('HSET', step_key(run, k), 'trained', inc) end
  end
  raise_rev(run)
  wake('version', run)
end
return {'ok', number}
