#!lua flags=allow-oom
-- Jobs past their wall deadline end: at once when nobody holds them, by a cancel message otherwise.
-- ARGV: most
-- Returns {ended, marked}.
if tonumber(call('HGET', P .. 'janitor', 'quiet_until') or '0') > NOW then return {0, 0} end
local ended, marked = 0, {}
for _, job in ipairs(call('ZRANGEBYSCORE', P .. 'z:deadline', '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[1]))) do
  local found = cancel_job(job, 'deadline')
  if found == 'running' then
    marked[#marked + 1] = job
    call('ZADD', P .. 'z:deadline', NOW + 5000, job)
  else
    ended = ended + 1
    call('ZREM', P .. 'z:deadline', job)
  end
end
if #marked > 0 then
  call('XADD', P .. 's:cancel', 'MAXLEN', '~', CANCEL_MAXLEN, '*', 'kind', 'job', 'why', 'deadline', 'ids', table.concat(marked, ' '), 'ts', NOW)
end
return {ended, #marked}
