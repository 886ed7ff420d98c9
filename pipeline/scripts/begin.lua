#!lua flags=allow-oom
-- A worker begins what it was delivered: the attempt counter goes up and is the fencing token from here on.
-- Idempotent by claim nonce: the same call again, after its reply was lost, answers the same attempt.
-- ARGV: stage, consumer, boot, lock_ms, window, then per entry: stream (without tag), entry id, job, nonce
-- Returns per entry one list:
--   {'ok', att, template id, draw, init att, run att, failed, node, inc}
--   {'gone'} a stray copy, removed · {'ended', outcome} settled here (cancelled, stale or expired) · {'usurped'} another process has this name
--   {'held'} another attempt runs: the entry was delivered twice, and the owner's next renewal takes it back
local stage, consumer, boot = ARGV[1], ARGV[2], ARGV[3]
local own = consumer .. '#' .. boot
local mine = holds_name(consumer, boot, tonumber(ARGV[4]))
local out, classes = {}, {}
-- what the stages before have made; a field that is not there is the dearest to look for
local MADE = {init = {}, run = {'b.init', 'node'}, eval = {'b.init', 'b.run', 'node'}}
local read = job_reader('st', 'src', 'eid', 'att', 'run', 'grp', 'inc', 'cls', 'tpl', 'draw', 'cx', 'drop', unpack(MADE[stage]))
local function answer(job, h, att)
  -- each stage before this one took an attempt, and every failure one more: with no more than that nothing has failed
  local failed = att > PLACE[stage] and hash(job_key(job), 'failed').failed or '0'
  return {'ok', att, h.tpl, h.draw, h['b.init'] or '0', h['b.run'] or '0', failed, h.node or '', h.inc or '0'}
end
-- 'stale' when a job can only be thrown away: its step drops groups that are too old, and a member that ended with something the policy did was
-- sampled by a version further back than `drop` of its hash allows. A group without such a member is fresh, however long ago it was launched.
-- What else makes a member count (its reward, its stop reason) is the supervisor's to know: a prompt returns whole either way.
local stale = {}
local function stale_of_group(h)
  if stale[h.grp] == nil then
    stale[h.grp] = false
    local r = hash_or_nothing(run_key(h.run), 'ver', 'inc')
    for _, line in ipairs(r.ver and call('HVALS', group_key(h.grp) .. ':m') or {}) do
      local outcome, inc, number = string.match(line, '^([%a_]+)|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|(%d+)%.(%d+)|')
      if (outcome == 'ok' or outcome == 'model_failure')
        and (tonumber(inc) < tonumber(r.inc) or (inc == r.inc and r.ver - number > tonumber(h.drop))) then
        stale[h.grp] = 'stale'
      end
    end
  end
  return stale[h.grp] or nil
end
for i = 6, #ARGV, 4 do
  local short, eid, job, nonce = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local stream, key = P .. short, job_key(job)
  if not mine then
    out[#out + 1] = {'usurped'}
  else
    local h, usable = read(job)
    local current = h.st and h.eid == eid and h.src == short
    if current and h.st == 'ready' then
      local cx = cancel_of(h) or (h.drop and stale_of_group(h))
      if cx then
        terminal(job, job_hash(job, 'run', 'grp', 'n', 'task', 'att', 'stage'), {out = outcome_of(cx), why = cx})
        drop_entry(stream, stage, eid)
        out[#out + 1] = {'ended', outcome_of(cx)}
      else
        local att = tonumber(h.att) + 1
        call('HSET', key, 'st', 'running', 'own', own, 'nonce', nonce, 'att', att, 'at.' .. stage, NOW)
        if stage == 'run' and h.grp ~= '' then count(group_key(h.grp), 'begun', 1) end
        if stage == 'init' then classes[h.cls or 'none'] = true end
        out[#out + 1] = answer(job, h, att)
      end
    elseif current and h.st == 'running' then
      local held = hash(key, 'own', 'nonce')
      out[#out + 1] = held.own == own and held.nonce == nonce and answer(job, h, tonumber(h.att)) or {'held'}
    else
      if not usable then bury(job, UNUSABLE) end
      drop_entry(stream, stage, eid)
      out[#out + 1] = {'gone'}
    end
  end
end
for cls in pairs(classes) do admit(cls, tonumber(ARGV[5])) end
return out
