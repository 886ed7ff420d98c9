#!lua flags=allow-oom
-- needs: ledger
-- What keeps a run from having enough groups at work, from now on. Fenced by the run's incarnation and rev, which stays as it is. A call whose reply
-- was lost is made again and adds what has passed since.
-- ARGV: run, inc, rev, why ('' = nothing does)
-- Returns {'ok'}; or {'moved', inc, rev}, {'closed', state}.
local refusal = moved(ARGV[1], ARGV[2], ARGV[3])
if refusal then return refusal end
note_shortage(ARGV[1], ARGV[4])
return {'ok'}
