#!lua flags=allow-oom
-- An entry that is no job of ours (no header, no hash): kept as a dead letter with its bytes, removed from the stage.
-- ARGV: stream, stage, entry id, why, raw bytes
-- Returns {'ok'} or {'gone'}.
local stream = P .. ARGV[1]
if #call('XRANGE', stream, ARGV[3], ARGV[3]) == 0 then
  drop_entry(stream, ARGV[2], ARGV[3])
  return {'gone'}
end
call('XADD', P .. 's:dead', 'MAXLEN', '~', DEAD_MAXLEN, '*', 'job', '', 'stage', ARGV[2], 'why', ARGV[4], 'entry', ARGV[1] .. '/' .. ARGV[3],
  'raw', ARGV[5])
drop_entry(stream, ARGV[2], ARGV[3])
return {'ok'}
