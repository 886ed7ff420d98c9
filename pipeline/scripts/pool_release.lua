#!lua flags=allow-oom
-- needs: pool
-- Assignments end; calls of theirs that have not ended are aborted at the server by a keeper. Idempotent.
-- ARGV: run, then per assignment: server, holder
-- Returns {released}.
local released = 0
for i = 2, #ARGV, 2 do released = released + end_lease(ARGV[1], ARGV[i], ARGV[i + 1]) end
return {released}
