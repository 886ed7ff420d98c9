#!lua flags=allow-oom
-- needs: ledger
-- More groups in flight are given up: the rest of what a reached step made redundant, when that was too much for one script, or groups that an
-- older incarnation launched. Fenced by the run's incarnation and rev; members that nobody holds settle at once, one message tells the others.
-- ARGV: run, inc, rev, reason, spare (see ledger.lua), step that made them redundant ('' = none), group...
-- Returns {'ok', rev, groups given up...}; or {'moved', inc, rev}, {'closed', state}.
local run, inc, rev = ARGV[1], ARGV[2], ARGV[3]
local refusal = moved(run, inc, rev)
if refusal then return refusal end
local given_up = give_up_groups(run, {unpack(ARGV, 7)}, ARGV[4], ARGV[5])
if ARGV[6] ~= '' then
  for _, grp in ipairs(given_up) do call('HSET', group_key(grp), 'cutby', ARGV[6]) end
  call('HINCRBY', step_key(run, ARGV[6]), 'redundant', #given_up)
end
touch_ledger(run)
return {'ok', #given_up > 0 and raise_rev(run) or rev, unpack(given_up)}
