#!lua flags=allow-oom
-- Where a trainer stands, kept with its run so that the next one can go on there without a checkpoint. Written just before the results it is done
-- with are acked. Fenced by incarnation; idempotent.
-- ARGV: run, inc, state (JSON text)
-- Returns {'ok'}; or {'stale', inc}, {'closed', state}.
local run = ARGV[1]
local refusal = inc_refusal(run, ARGV[2])
if refusal then return refusal end
call('HSET', run_key(run), 'trainer', ARGV[3])
return {'ok'}
