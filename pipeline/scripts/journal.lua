#!lua flags=allow-oom
-- Finished turns of running attempts, as deltas. Fenced; idempotent by the turn's index.
-- ARGV: ttl_ms, then per turn: job, attempt, index, body, sampled tokens
-- A journal lives as long as its job, and at least ttl_ms.
-- Returns per turn 1 kept, 0 lost (the attempt is not current, or turns before this one are missing), or the cancel reason.
local out = {}
local read = job_reader('st', 'att', 'cx')
for i = 2, #ARGV, 5 do
  local job, att, index = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local h = read(job)
  if h.st == 'running' and h.att == att then
    local key = body_key(job, att, 'turns')
    local have = call('RPUSH', key, ARGV[i + 3])
    if have ~= index + 1 then
      call('RPOP', key)
    elseif ARGV[i + 4] ~= '0' then
      call('HINCRBY', job_key(job), 'tok', ARGV[i + 4])
    end
    if have == 1 then call('PEXPIRE', key, math.max(tonumber(ARGV[1]), call('PTTL', job_key(job)))) end
    out[#out + 1] = h.cx or (have > index and 1 or 0)
  else
    out[#out + 1] = 0
  end
end
return out
