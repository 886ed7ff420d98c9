#!lua
-- needs: ledger
-- Prompts enter the reserve of their run. Idempotent by prompt id: one that is there, in flight or done with is 'dup'. A prompt that an older
-- incarnation was done with may be pushed again (its trainer went back): it takes its old place, as its next draw.
-- No allow-oom: above maxmemory the server itself refuses.
-- ARGV: run, inc, then per prompt: id, body
-- Returns per prompt 'ok' or 'dup'; or {'stale', inc}, {'closed', state}, {'full', why, retry_after_ms} for all.
local run, inc = ARGV[1], ARGV[2]
local refusal = run_refusal(run, inc)
if refusal then return refusal end
local bytes = 0
for i = 4, #ARGV, 2 do bytes = bytes + #ARGV[i] end
local full = memory_refusal(bytes)
if full then return {'full', full, 2000} end
local rk, reserve = run_key(run), reserve_key(run)
local was_empty = call('EXISTS', reserve) == 0
local out, fresh = {}, 0
for i = 3, #ARGV, 2 do
  local id, body = ARGV[i], ARGV[i + 1]
  local m = read_mark(run, id)
  if m and (m.inc == inc or m.state == 'reserve' or m.state == 'flying') then
    out[#out + 1] = 'dup'
  else
    if m then
      -- what the lost history did with it did not happen
      count_epoch(run, id, m.state, -1)
      m.state, m.inc, m.draw, m.redraws = 'reserve', inc, m.draw + 1, 0
    else
      count_epoch(run, id, 'pushed', 1)
      m = {state = 'reserve', inc = inc, draw = 0, redraws = 0, place = call('HINCRBY', rk, 'places', 1)}
    end
    write_mark(run, id, m)
    call('HSET', prompt_bodies_key(run), id, body)
    call('ZADD', reserve, m.place, id)
    fresh = fresh + 1
    out[#out + 1] = 'ok'
  end
end
if fresh > 0 then
  call('HINCRBY', rk, 'prompts.pushed', fresh)
  -- only what a decision looks at moves the ledger: whether there is a reserve, and whether more is to come
  local reopened = call('HDEL', rk, 'ended', 'need') > 0
  touch_ledger(run)
  if was_empty or reopened then
    raise_rev(run)
    wake('prompts', run)
  end
end
return out
