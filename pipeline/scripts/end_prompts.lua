#!lua flags=allow-oom
-- needs: ledger
-- The trainer of this incarnation pushes no more prompts: steps end short when the reserve is empty and nothing is in flight. Idempotent.
-- ARGV: run, inc
-- Returns {'ok'}, {'stale', inc} or {'closed', state}.
local run, inc = ARGV[1], ARGV[2]
local refusal = run_refusal(run, inc)
if refusal then return refusal end
local rk = run_key(run)
if call('HGET', rk, 'ended') ~= inc then
  call('HSET', rk, 'ended', inc)
  call('HDEL', rk, 'need')
  raise_rev(run)
  wake('prompts_ended', run)
end
return {'ok'}
