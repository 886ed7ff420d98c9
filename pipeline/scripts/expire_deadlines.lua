#!lua flags=allow-oom
-- Jobs past their wall deadline end: at once when nobody holds them, by a cancel message otherwise.
-- One that cannot end (the results of its run are something else by now) is tried again later and does not keep the others waiting.
-- ARGV: most
-- Returns {ended, marked, what kept some from ending or ''}.
if tonumber(call('HGET', P .. 'janitor', 'quiet_until') or '0') > NOW then return {0, 0, ''} end
local AGAIN_MS = 5000
local ended, marked, stuck = 0, {}, ''
for _, job in ipairs(call('ZRANGEBYSCORE', P .. 'z:deadline', '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[1]))) do
  local ok, found = pcall(cancel_job, job, 'deadline')
  if not ok then
    stuck = job .. ': ' .. words_of(found)
    call('ZADD', P .. 'z:deadline', NOW + AGAIN_MS, job)
  elseif found == 'running' then
    marked[#marked + 1] = job
    call('ZADD', P .. 'z:deadline', NOW + AGAIN_MS, job)
  else
    ended = ended + 1
    call('ZREM', P .. 'z:deadline', job)
  end
end
if #marked > 0 then
  call('XADD', P .. 's:cancel', 'MAXLEN', '~', CANCEL_MAXLEN, '*', 'kind', 'job', 'why', 'deadline', 'ids', table.concat(marked, ' '), 'ts', NOW)
end
return {ended, #marked, stuck}
