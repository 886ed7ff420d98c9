#!lua flags=allow-oom
-- Keys that nobody can reach any more: what is left of jobs, groups and templates whose run is gone, and bodies of jobs that are gone or of attempts
-- that were lost. A caller proposes keys, this decides: whoever proposed them may be late. Idempotent.
-- A run is gone when neither its hash nor anything open is there. A body of a job that is there stays when its hash names it, and when its attempt is
-- the current one or a later one: that may still be written, and handed on.
-- ARGV: '1' = only say what would go, then keys without their tag
-- Returns {how many go, bytes of the plain bodies among them}.
local dry, gone, bytes = ARGV[1] == '1', 0, 0
local MOST_MEMBERS = 1024
local function run_is_gone(unit)
  local run = string.match(unit, '^[^.]+')
  return call('EXISTS', run_key(run), open_key(run)) == 0
end
local function group_is_gone(grp)
  if call('EXISTS', group_key(grp), job_key(grp)) > 0 then return false end
  local members = {}
  for m = 0, MOST_MEMBERS - 1 do members[#members + 1] = job_key(grp .. '.' .. m) end
  return call('EXISTS', unpack(members)) == 0
end
local function attempt_is_lost(job, att, kind)
  local h, usable = job_hash(job, 'st', 'att', 'b.init', 'b.run', 'b.eval', 'salvaged')
  if not usable then return false end
  if not h.st then return true end
  if tonumber(att) >= tonumber(h.att or '0') then return false end
  if kind == 'turns' then return h.salvaged ~= att end
  if kind == 'attached' then return h['b.eval'] ~= att end
  return PLACE[kind] ~= nil and h['b.' .. kind] ~= att
end
local function is_unowned(key)
  local unit = string.match(key, '^b:([^:]+):prompt$')
  if unit then return run_is_gone(unit) or group_is_gone(unit) end
  local job, att, kind = string.match(key, '^b:([^:]+):(%d+):(%l+)$')
  if job then return run_is_gone(job) or attempt_is_lost(job, att, kind) end
  local run = string.match(key, '^tp:([^:]+):[^:]+$') or string.match(key, '^g:([^:]+)$') or string.match(key, '^g:([^:]+):m$')
  if run then return run_is_gone(run) end
  job = string.match(key, '^j:([^:]+)$')
  return job ~= nil and run_is_gone(job) and job_hash(job, 'st').st == 'done'
end
for i = 2, #ARGV do
  local key = P .. ARGV[i]
  if call('EXISTS', key) == 1 and is_unowned(ARGV[i]) then
    gone = gone + 1
    local size = redis.pcall('STRLEN', key)
    if type(size) == 'number' then bytes = bytes + size end
    if not dry then unlink(key) end
  end
end
return {gone, bytes}
