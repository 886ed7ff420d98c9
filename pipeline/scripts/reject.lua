#!lua flags=allow-oom
-- An entry that no worker can serve: no header, a body that cannot be read, an end that Redis refuses. It is kept as a dead letter with its bytes and
-- removed from the stage; an accepted job that stands at this entry ends with it (promise 1). Idempotent: without the entry nothing is done.
-- ARGV: stream, stage, entry id, why, raw bytes
-- Returns {'ok'} or {'gone'}.
local short, stage, eid, why, raw = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local stream = P .. short
local found = call('XRANGE', stream, eid, eid)
drop_entry(stream, stage, eid)
if #found == 0 then return {'gone'} end
local fields = {}
for k = 1, #found[1][2], 2 do fields[found[1][2][k]] = found[1][2][k + 1] end
local job = fields.job or ''
local h, usable = job_hash(job, 'st', 'stage', 'src', 'eid', 'att', 'run', 'grp', 'n', 'task', 'cls', 'failed', 'lost')
if job ~= '' and not usable then
  local ok, buried = pcall(bury, job, why)
  if ok and buried then return {'ok'} end
elseif h.st and (h.eid ~= eid or h.src ~= short) then
  return {'ok'} -- an old copy: the job is elsewhere
elseif h.st and pcall(dead_letter, job, h, why, 'entry', short .. '/' .. eid, 'raw', raw) then
  unlink(body_key(job, h.att, 'turns'))
  return {'ok'}
end
tell_dead('job', job, 'stage', stage, 'why', why, 'entry', short .. '/' .. eid, 'raw', raw)
return {'ok'}
