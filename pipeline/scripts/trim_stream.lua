#!lua flags=allow-oom
-- Entries of a stream that are old and that every group has read and acknowledged. For streams that tell, never for those that hold work or results.
-- Idempotent. Whole nodes of the stream go, so some old entries may stay.
-- ARGV: '1' = only say whether there is something, stream without tag (s:reward, s:cancel or s:dead), age in ms from which on entries are old, most
-- entries a call
-- Returns {how many went, 1 when there may be more}.
local dry, name, most = ARGV[1] == '1', ARGV[2], tonumber(ARGV[4])
if name ~= 's:reward' and name ~= 's:cancel' and name ~= 's:dead' then return redis.error_reply('ERR no stream that may be trimmed') end
local stream = P .. name
local groups = redis.pcall('XINFO', 'GROUPS', stream)
if groups.err then return {0, 0} end
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local function earlier(a, b)
  local am, as = parts(a)
  local bm, bs = parts(b)
  return am < bm or (am == bm and as < bs)
end
-- the first entry that stays
local bound = string.format('%.0f-0', NOW - tonumber(ARGV[3]))
for _, flat in ipairs(groups) do
  local info = {}
  for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
  local read = info['last-delivered-id']
  if earlier(read, bound) then bound = read end
  local pending = call('XPENDING', stream, info.name)
  if pending[1] > 0 and earlier(pending[2], bound) then bound = pending[2] end
end
if dry then
  local old = call('XRANGE', stream, '-', '(' .. bound, 'COUNT', most)
  return {#old, #old == most and 1 or 0}
end
local went = call('XTRIM', stream, 'MINID', '~', bound, 'LIMIT', most)
return {went, went >= most and 1 or 0}
