#!lua flags=allow-oom
-- needs: pool
-- Jobs get servers of their run and model: the one that the attempt has; else one where members of its group are, the first one first, while that has
-- room; else the one with fewest live assignments. Room = at most `lax` thousandths of the mean, and one more. An assignment is a lease; load is the
-- number of live leases, so nothing drifts when a process dies. Asking again changes nothing.
-- A pinned job has one server for good, whatever the load: that of its number among the servers sorted by address. It waits for that one.
-- ARGV: run, lease_ms, lax, number of servers not to be taken, those servers, then per job: holder (job:attempt), model ('' = any), group ('' = none),
-- pin ('' = none, else a whole number)
-- Returns per job {url, label of its weights}; url '' when there is none, with why in place of the label: none, down, unsynced, draining or avoided.
local run, lease, lax = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]) / 1000
local avoided, first = {}, 5 + tonumber(ARGV[4])
for i = 5, first - 1 do avoided[ARGV[i]] = true end
local r, urls, servers = pool_run(run), call('SMEMBERS', servers_key(run)), {}
table.sort(urls)
for i, url in ipairs(urls) do
  local s = pool_server(run, url)
  s.url, s.key, s.load = url, leases_key(run, url), call('ZCOUNT', leases_key(run, url), NOW, '+inf')
  s.no = avoided[url] and 'avoided' or why_not(r, s)
  s.no_new = s.no or (s.state ~= 'up' and s.state) or nil
  servers[i] = s
end

local function to_grp(group, known, url)
  call('SET', P .. 'grp:' .. run .. ':' .. group, known and known .. ' ' .. url or url, 'PX', 3600000)
end

local function choose(holder, model, group, pin)
  local mine, of_model = nil, {}
  for _, s in ipairs(servers) do
    if model == '' or s.model == model then
      of_model[#of_model + 1] = s
      local score = call('ZSCORE', s.key, holder)
      if score and tonumber(score) > NOW then
        if s.no then s.load = s.load - end_lease(run, s.url, holder) else mine = s end
      end
    end
  end
  if mine then return mine end
  if #of_model == 0 then return nil, 'none' end
  if pin then
    local s = of_model[pin % #of_model + 1]
    return not s.no_new and s or nil, s.no_new
  end
  local total, count, best, why = 0, 0, nil, nil
  for _, s in ipairs(of_model) do
    if s.no_new then
      why = why or s.no_new
    else
      total, count = total + s.load, count + 1
      if not best or s.load < best.load then best = s end
    end
  end
  if not best then return nil, why end
  if group ~= '' then
    local bound = lax * (total + 1) / count + 1
    local known = call('GET', P .. 'grp:' .. run .. ':' .. group)
    for url in string.gmatch(known or '', '%S+') do
      for _, s in ipairs(of_model) do
        if s.url == url and not s.no_new and s.load + 1 <= bound then return s end
      end
    end
    to_grp(group, known, best.url)
  end
  return best
end

local out = {}
for i = first, #ARGV, 4 do
  local holder = ARGV[i]
  local s, why = choose(holder, ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]))
  if s then
    s.load = s.load + call('ZADD', s.key, NOW + lease, holder)
    keep(s.key, HOUR)
    keep(server_key(run, s.url), WEEK)
    keep(P .. 'holds:' .. s.url, WEEK)
    out[#out + 1], out[#out + 2] = s.url, s.ver or ''
  else
    out[#out + 1], out[#out + 2] = '', why
  end
end
keep_run(run)
return out
