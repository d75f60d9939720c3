-- What the scripts of locks begin with, after server.lua: the store's record.

local store_numbers = {'life', 'highest', 'longest_ms', 'last_ms', 'fence_from_ms', 'fence_until_ms'}

-- note writes some fields of the store's record.
local function note(p, ...)
  local fields = {}
  for _, name in ipairs({...}) do
    fields[#fields + 1] = name
    fields[#fields + 1] = type(p[name]) == 'number' and int(p[name]) or p[name]
  end
  redis.call('HSET', A.store, unpack(fields))
end

-- store reads the store's record, nil when there is none, or gives the answer
-- that refuses to work with it.
local function store()
  local f = redis.call('HMGET', A.store, 'format', 'run_id', 'repl_id', 'fence_reason', unpack(store_numbers))
  if not f[1] then return nil end
  if f[1] ~= '1' then return nil, {'format', f[1]} end
  local p = {run_id = f[2], repl_id = f[3], fence_reason = f[4]}
  for i, name in ipairs(store_numbers) do p[name] = tonumber(f[4 + i]) end
  return p
end

-- settle begins a new life where the store may have forgotten something, with a
-- fence that outlasts every lease that was.
local function settle(p, s, t)
  local allowed = tonumber(A.max_ttl_ms)
  if not p then
    p = {format = '1', run_id = s.run_id, repl_id = s.repl_id, life = t, highest = 0, longest_ms = 0, last_ms = t,
      fence_from_ms = t, fence_until_ms = t + allowed, fence_reason = 'missing'}
    note(p, 'format', 'run_id', 'repl_id', 'fence_reason', unpack(store_numbers))
  elseif forgetful(p, s) then
    -- A server whose clock is behind the one before it waits that much longer:
    -- what was lost ends by the clock that it was granted by.
    local from = math.max(t, p.last_ms)
    local till = from + (p.longest_ms > 0 and p.longest_ms or allowed)
    if A.failover_fence_ms then till = t + tonumber(A.failover_fence_ms) end
    -- failover_fence is no excuse for a record that was missing: that fence stands.
    if t >= p.fence_until_ms or p.fence_reason ~= 'missing' then
      p.fence_reason, p.fence_from_ms = 'changed', from
    end
    p.run_id, p.repl_id, p.life = s.run_id, s.repl_id, math.max(t, p.life + 1)
    p.fence_until_ms = math.max(p.fence_until_ms, till)
    note(p, 'run_id', 'repl_id', 'life', 'fence_from_ms', 'fence_until_ms', 'fence_reason')
  elseif p.repl_id ~= s.repl_id then
    p.repl_id = s.repl_id
    note(p, 'repl_id')
  end
  if p.fence_reason == 'missing' and p.fence_from_ms + allowed > p.fence_until_ms then
    -- A client that allows longer terms: its own leases may be among the lost.
    p.fence_until_ms = p.fence_from_ms + allowed
    note(p, 'fence_until_ms')
  end
  return p
end

-- begin reads what every change needs, or the answer that refuses it.
local function begin()
  local p, other = store()
  local s, refusal = p and same_server(p.repl_id)
  if not s then s, refusal = server() end
  if refusal or other then return nil, nil, refusal or other end
  local t = clock()
  p = settle(p, s, t)
  if s.replicas < tonumber(A.min_replicas) then return nil, nil, {'replicas', int(s.replicas)} end
  return p, t
end

-- note_term records what a lease that was granted or renewed means to the store:
-- the longest term, which is rounded up because it is seldom so long that it is
-- doubled, and the latest time and token.
local function note_term(p, t, token)
  local ttl = tonumber(A.ttl_ms)
  if ttl > p.longest_ms then
    local longest = 60000
    while longest < ttl do longest = longest * 2 end
    p.longest_ms = math.min(longest, tonumber(A.max_ttl_ms)) -- which ttl is not above
  end
  p.highest, p.last_ms = math.max(p.highest, token), math.max(p.last_ms, t)
  note(p, 'highest', 'last_ms', 'longest_ms')
end
