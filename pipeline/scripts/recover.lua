#!lua flags=allow-oom
-- Entries whose owner is gone: an expired lease ('idle'), or what an earlier boot of the caller left behind ('restart', told by the owner's boot).
-- Judges no lease while the janitor keeps quiet after an outage. A delivered entry that was never begun goes back uncounted. An entry of this
-- consumer whose job another one runs (it was delivered twice) goes to that one. 'restart' is refused when another boot holds the name by now.
-- ARGV: mode, lease_ms, consumer, boot, backoff_ms, most backoff_ms, then per entry: stream, entry id, job, jitter 0 to 1
-- An entry that names no job (job = '') is kept as a dead letter.
-- Returns per entry 'fresh', 'stale', 'ready', 'lost', 'dead', 'salvaged', 'ended', 'usurped'.
local mode, lease, me = ARGV[1], tonumber(ARGV[2]), ARGV[3] .. '#' .. ARGV[4]
local base, most = tonumber(ARGV[5]), tonumber(ARGV[6])
local GONE = {idle = 'its lease ran out', restart = 'its worker started anew'}
local quiet = mode == 'idle' and tonumber(call('HGET', P .. 'janitor', 'quiet_until') or '0') > NOW
local out = {}
local held = mode == 'restart' and call('HGET', P .. 'w:' .. ARGV[3], 'boot')
local usurped = held and held ~= ARGV[4]
for i = 7, #ARGV, 4 do
  local short, eid, job, jitter = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local stream, key = P .. short, job_key(job)
  local h, usable = job_hash(job, 'st', 'stage', 'src', 'eid', 'att', 'own', 'run', 'grp', 'n', 'task', 'cls', 'node', 'cx', 'failed', 'lost', 'mf', 'ml', 'recovery', 'inc')
  local stage = string.match(short, '^s:(%a+)')
  local due, owner
  if usurped then
    due = false
  elseif mode == 'idle' then
    local idle = not quiet and redis.pcall('XPENDING', stream, stage, 'IDLE', lease, eid, eid, 1) or {}
    due = not idle.err and #idle > 0
  else
    owner = string.match(h.own or '', '^(.*)#[^#]*$')
    due = h.st ~= 'running' or h.own ~= me
  end
  if not due then
    out[#out + 1] = usurped and 'usurped' or 'fresh'
  elseif not usable then
    bury(job, UNUSABLE)
    drop_entry(stream, stage, eid)
    out[#out + 1] = 'dead'
  elseif not h.st or h.eid ~= eid or h.src ~= short then
    local raw = job == '' and call('XRANGE', stream, eid, eid) or {}
    if #raw > 0 then
      tell_dead('job', '', 'stage', stage, 'why', 'no header of ours', 'entry', short .. '/' .. eid, 'raw', table.concat(raw[1][2], '\n'))
    end
    drop_entry(stream, stage, eid)
    out[#out + 1] = 'stale'
  elseif h.st == 'ready' then
    requeue(job, h, h.stage, 0)
    drop_entry(stream, stage, eid)
    out[#out + 1] = 'ready'
  elseif owner and owner ~= ARGV[3] then
    local pending = call('XPENDING', stream, stage, eid, eid, 1)
    call('XCLAIM', stream, stage, owner, 0, eid, 'IDLE', #pending > 0 and pending[1][3] or 0, 'JUSTID')
    out[#out + 1] = 'fresh'
  else
    local turns = body_key(job, h.att, 'turns')
    local cx = cancel_of(h)
    if cx then
      terminal(job, h, {out = outcome_of(cx), why = cx})
      unlink(turns)
      out[#out + 1] = 'ended'
    elseif h.stage == 'run' and h.recovery == 'salvage_partial' and call('EXISTS', turns) == 1 then
      note_attempt(job, h.att, h.stage, 'salvaged', GONE[mode])
      make_ready(job, h, 'eval', nil, 'b.run', h.att, 'salvaged', h.att, 'node', '', 'epoch', '')
      out[#out + 1] = 'salvaged'
    else
      local lost = tonumber(h.lost) + 1
      h.lost = tostring(lost)
      note_attempt(job, h.att, h.stage, 'lost', GONE[mode])
      if lost > tonumber(h.ml) then
        dead_letter(job, h, 'lost ' .. lost .. ' times, last in ' .. h.stage .. ' by ' .. (h.own or '?'))
        out[#out + 1] = 'dead'
      else
        local pause = mode == 'restart' and 0 or math.floor(math.min(most, base * 2 ^ (lost - 1)) * (0.5 + jitter / 2))
        requeue(job, h, retry_stage(h), pause)
        out[#out + 1] = 'lost'
      end
      call('HSET', key, 'lost', lost)
      unlink(turns)
    end
    drop_entry(stream, stage, eid)
  end
end
return out
