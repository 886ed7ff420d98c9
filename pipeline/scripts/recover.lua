#!lua flags=allow-oom
-- Entries whose owner is gone: an expired lease ('idle'), or what an earlier boot of the caller left behind ('restart', told by the owner's boot).
-- Judges no lease while the janitor keeps quiet after an outage. A delivered entry that was never begun goes back uncounted.
-- ARGV: mode, lease_ms, consumer, boot, backoff_ms, most backoff_ms, then per entry: stream, entry id, job, jitter 0 to 1
-- Returns per entry 'fresh', 'stale', 'ready', 'lost', 'dead', 'salvaged', 'ended'.
local mode, lease, me = ARGV[1], tonumber(ARGV[2]), ARGV[3] .. '#' .. ARGV[4]
local base, most = tonumber(ARGV[5]), tonumber(ARGV[6])
local quiet = mode == 'idle' and tonumber(call('HGET', P .. 'janitor', 'quiet_until') or '0') > NOW
local out = {}
for i = 7, #ARGV, 4 do
  local short, eid, job, jitter = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local stream, key = P .. short, job_key(job)
  local h = hash(key, 'st', 'stage', 'src', 'eid', 'att', 'own', 'run', 'grp', 'n', 'task', 'cls', 'node', 'cx', 'failed', 'lost', 'mf', 'ml', 'recovery')
  local stage = string.match(short, '^s:(%a+)')
  local due
  if mode == 'idle' then
    local idle = not quiet and redis.pcall('XPENDING', stream, stage, 'IDLE', lease, eid, eid, 1) or {}
    due = not idle.err and #idle > 0
  else
    due = h.own ~= me
  end
  if not due then
    out[#out + 1] = 'fresh'
  elseif not h.st or h.eid ~= eid or h.src ~= short then
    drop_entry(stream, stage, eid)
    out[#out + 1] = 'stale'
  elseif h.st == 'ready' then
    drop_entry(stream, stage, eid)
    requeue(job, h, h.stage, 0)
    out[#out + 1] = 'ready'
  else
    drop_entry(stream, stage, eid)
    local turns = body_key(job, h.att, 'turns')
    if h.cx then
      unlink(turns)
      terminal(job, h, {out = h.cx == 'deadline' and 'expired' or 'cancelled', why = h.cx})
      out[#out + 1] = 'ended'
    elseif h.stage == 'run' and h.recovery == 'salvage_partial' and call('EXISTS', turns) == 1 then
      call('HSET', key, 'b.run', h.att, 'salvaged', h.att)
      h.node = nil
      make_ready(job, h, 'eval')
      out[#out + 1] = 'salvaged'
    else
      unlink(turns)
      local lost = call('HINCRBY', key, 'lost', 1)
      h.lost = tostring(lost)
      if lost > tonumber(h.ml) then
        dead_letter(job, h, 'lost ' .. lost .. ' times, last in ' .. h.stage .. ' by ' .. (h.own or '?'))
        out[#out + 1] = 'dead'
      else
        local pause = mode == 'restart' and 0 or math.floor(math.min(most, base * 2 ^ (lost - 1)) * (0.5 + jitter / 2))
        requeue(job, h, retry_stage(h), pause)
        out[#out + 1] = 'lost'
      end
    end
  end
end
return out
