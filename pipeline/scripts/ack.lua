#!lua flags=allow-oom
-- The trainer has what it wants of these results: bodies and records go, a tombstone of the unit stays for two days. Fenced by incarnation.
-- ARGV: run, inc, then per result: entry id, kind (job, group, step), id
-- Returns {'ok', removed} or {'stale', inc} or {'closed', state}.
local run = ARGV[1]
local r = hash(run_key(run), 'inc', 'st')
if not r.st then return {'closed', 'unknown'} end
if r.inc ~= ARGV[2] then return {'stale', r.inc} end
local removed, tomb = 0, done_key(run, NOW)
local function drop_job(job)
  local key = job_key(job)
  local h = hash(key, 'st', 'b.init', 'b.run', 'b.eval', 'rid')
  if h.st ~= 'done' then return false end
  local keys = {key}
  for _, stage in ipairs(STAGES) do
    if h['b.' .. stage] then keys[#keys + 1] = body_key(job, h['b.' .. stage], stage) end
  end
  call('UNLINK', unpack(keys))
  if h.rid then call('XDEL', results_key(run), h.rid) end
  return true
end
for i = 3, #ARGV, 3 do
  local entry, kind, id = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if kind == 'job' then
    if drop_job(id) then
      call('UNLINK', prompt_key(id))
      call('SADD', tomb, id)
    end
  elseif kind == 'group' then
    local want = tonumber(call('HGET', group_key(id), 'want') or '0')
    for m = 0, want - 1 do drop_job(id .. '.' .. m) end
    if want > 0 then
      call('UNLINK', group_key(id), group_key(id) .. ':m', prompt_key(id))
      call('SADD', tomb, id)
    end
  end
  if entry ~= '' then removed = removed + call('XDEL', results_key(run), entry) end
end
if call('TTL', tomb) < 0 then call('EXPIRE', tomb, 172800) end
return {'ok', removed}
