#!lua flags=allow-oom
-- The trainer has what it wants of these results: bodies and records go, a tombstone of the unit stays for two days. Fenced by incarnation.
-- What has not ended stays: a job that runs, and a group that is open, with all its members. A call passes over at most about `most` jobs: call again
-- with the place it answers while the first word is 'more'. A group goes after all of its members, so who stops in between acks again.
-- ARGV: run, inc, most, place of the result to go on with, its next member, then per result: entry id, kind (job, group, step), id
-- Returns {'ok' or 'more', removed, place, member} or {'stale', inc} or {'closed', state}.
local run, most, place, member = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local refusal = inc_refusal(run, ARGV[2])
if refusal then return refusal end
local records, tomb = {}, done_key(run, NOW)
local read = job_reader('st', 'grp', 'b.init', 'b.run', 'b.eval', 'rid', 'salvaged')
local function drop_job(job)
  most = most - 1
  local h, usable = read(job)
  if usable and h.st ~= 'done' then return false end
  unlink(job_key(job))
  for _, stage in ipairs(STAGES) do
    if h['b.' .. stage] then unlink(body_key(job, h['b.' .. stage], stage)) end
  end
  if h['b.eval'] then unlink(attached_key(job, h['b.eval'])) end
  if h.salvaged then unlink(body_key(job, h.salvaged, 'turns')) end
  records[#records + 1] = h.rid
  return true, h.grp
end
-- True when a group has gone, or stays; else `member` says how far.
local function drop_group(id)
  local g = hash(group_key(id), 'want', 'st')
  if not g.st or g.st == 'open' then return true end
  local want = tonumber(g.want)
  while member < want do
    if most <= 0 then return false end
    drop_job(id .. '.' .. member)
    member = member + 1
  end
  for _, key in ipairs({group_key(id), group_key(id) .. ':m', prompt_key(id)}) do unlink(key) end
  call('SADD', tomb, id)
  return true
end
local more = false
for i = 6 + 3 * place, #ARGV, 3 do
  local entry, kind, id = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if most <= 0 or (kind == 'group' and not drop_group(id)) then
    more = true
    break
  end
  if kind == 'job' then
    local dropped_it, grp = drop_job(id)
    -- members are not accepted one by one: the tombstone of their group is enough
    if dropped_it and (grp or '') == '' then
      unlink(prompt_key(id))
      call('SADD', tomb, id)
    end
  end
  if entry ~= '' then records[#records + 1] = entry end
  place, member = place + 1, 0
end
local removed = 0
in_pieces(records, function(...) removed = removed + call('XDEL', results_key(run), ...) end)
if call('TTL', tomb) < 0 then call('EXPIRE', tomb, 172800) end
return {more and 'more' or 'ok', removed, place, member}
