#!lua flags=allow-oom
-- Waiting jobs move to INIT while it is short.
-- ARGV: window, class...
-- Returns {moved}.
local moved = 0
for i = 2, #ARGV do moved = moved + admit(ARGV[i], tonumber(ARGV[1])) end
return {moved}
