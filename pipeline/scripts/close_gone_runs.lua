#!lua flags=allow-oom
-- Closes runs whose trainer gave no sign for longer than they said (`gone_ms`), in time in which Redis and a janitor were there: what `away_ms` of the
-- janitor grew by since that sign does not count. A closed run takes no more work and leaves a note in its results; its keys live on, and connecting
-- opens it again. Idempotent.
-- ARGV: place among the runs, how many to look at
-- Returns {next place or -1, then per run that has jobs left to cancel, or was closed now: run, incarnation, 1 when closed now, silent ms}.
local place, page = tonumber(ARGV[1]), tonumber(ARGV[2])
local away = tonumber(hash_or_nothing(P .. 'janitor', 'away_ms').away_ms or '0')
local runs = call('ZRANGE', P .. 'runs', place, place + page - 1)
local out = {#runs == page and place + page or -1}
local function tell(...) for _, word in ipairs({...}) do out[#out + 1] = word end end
for _, run in ipairs(runs) do
  local rk = run_key(run)
  local r = hash_or_nothing(rk, 'st', 'inc', 'contact', 'away', 'gone_ms', 'ttl_ms', 'why')
  if r.st == 'open' and r.gone_ms then
    local silent = NOW - tonumber(r.contact) - math.max(0, away - tonumber(r.away or '0'))
    if silent > tonumber(r.gone_ms) then
      call('HSET', rk, 'st', 'closed', 'why', 'abandoned', 'closed', NOW)
      -- results that are something else by now keep no run open
      redis.pcall('XADD', results_key(run), '*', 'kind', 'note', 'run', run, 'note', 'run_closed', 'why', 'abandoned', 'silent_ms', silent, 'inc', r.inc)
      keep(results_key(run), tonumber(r.ttl_ms))
      tell(run, r.inc, 1, silent)
    end
  elseif r.st == 'closed' and r.why == 'abandoned' and call('EXISTS', open_key(run)) == 1 then
    tell(run, r.inc, 0, 0)
  end
end
return out
