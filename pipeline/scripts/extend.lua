#!lua flags=allow-oom
-- needs: ledger
-- Results that nobody has acked yet live on, and with them the ledger of their run: a trainer may think about one step for longer than the time
-- to live. Only ever lengthens an expiry. Fenced by incarnation; idempotent.
-- ARGV: run, inc, then per unit: kind (job | group), id
-- Returns {'ok', units that are gone}; or {'stale', inc}, {'closed', state}.
local run = ARGV[1]
local r = hash(run_key(run), 'inc', 'st', 'ttl_ms')
if not r.st then return {'closed', 'unknown'} end
if r.inc ~= ARGV[2] then return {'stale', r.inc} end
local gone = 0
local function lengthen(key) return call('PEXPIRE', key, r.ttl_ms, 'GT') end
local function job(id)
  local h = job_hash(id, 'st', 'b.init', 'b.run', 'b.eval', 'salvaged')
  if not h.st then return false end
  lengthen(job_key(id))
  for _, stage in ipairs(STAGES) do
    local att = h['b.' .. stage]
    if att then lengthen(body_key(id, att, stage)) end
  end
  if h['b.eval'] then lengthen(attached_key(id, h['b.eval'])) end
  if h.salvaged then lengthen(body_key(id, h.salvaged, 'turns')) end
  return true
end
for i = 3, #ARGV, 2 do
  local kind, id = ARGV[i], ARGV[i + 1]
  local found
  if kind == 'group' then
    local ok, g = pcall(hash, group_key(id), 'want')
    found = ok and g.want
    lengthen(group_key(id))
    lengthen(group_key(id) .. ':m')
    for m = 0, tonumber(found or '0') - 1 do job(id .. '.' .. m) end
  else
    found = job(id)
  end
  lengthen(prompt_key(id))
  if not found then gone = gone + 1 end
end
touch_ledger(run)
return {'ok', gone}
