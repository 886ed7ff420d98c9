#!lua flags=allow-oom
-- needs: pool
-- Model calls have ended, and need not be aborted any more. A call that went on at another server than the one before is counted, with the tokens of
-- its prefix that the new one had not seen. Idempotent by call id: what ended before counts no more.
-- ARGV: run, then per call: server, holder, call id, 1 when it was re-routed, tokens lost
-- Returns {oldest label that the run allows now, newest ('' = any)}.
local run = ARGV[1]
for i = 2, #ARGV, 5 do
  local url, holder, id = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local calls, left, found = calls_key(run, url), {}, false
  for word in string.gmatch(call('HGET', calls, holder) or '', '%S+') do
    if word == id then found = true else left[#left + 1] = word end
  end
  if found then
    if #left > 0 then call('HSET', calls, holder, table.concat(left, ' ')) else call('HDEL', calls, holder) end
  end
  found = call('HDEL', aborts_key(run, url), id) == 1 or found
  if found and ARGV[i + 3] == '1' then
    count(pool_run_key(run), 'rerouted', 1)
    count(pool_run_key(run), 'lost_tokens', tonumber(ARGV[i + 4]))
  end
end
local lowest, highest = allowed_labels(pool_run(run))
return {lowest, highest}
