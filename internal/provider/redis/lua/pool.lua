-- What the scripts of leases begin with, after server.lua: the checks that all of them
-- make, the server s, and the pool's record p.

-- KEYS[1] is the pool's record; all other keys of the pool share its beginning.
local base = string.sub(KEYS[1], 1, -5)

-- Sorted sets whose scores are equal order their members as text.
local function wide(n) return string.format('%016.0f', n) end

local function count(name) redis.call('HINCRBY', base .. 'stats', name, 1) end

local pool_fields = {
  'format', 'epoch_ms', 'bit_ts', 'run_id', 'repl_id', 'repl_in', 'levels', 'longest_ms', 'last_ms',
  'fence_from_ms', 'fence_until_ms', 'fence_reason', 'grants', 'oldest',
}

-- pool reads the pool's record, nil when there is none. Where the caller names
-- a timeline, another one is an answer that refuses.
local function pool()
  local f = redis.call('HMGET', KEYS[1], unpack(pool_fields))
  if not f[1] then return nil end
  local p = {}
  for i, name in ipairs(pool_fields) do p[name] = f[i] end
  if p.format ~= '1' then return nil, {'format', p.format} end
  if A.epoch_ms and (p.epoch_ms ~= A.epoch_ms or p.bit_ts ~= A.bit_ts) then
    return nil, {'timeline', p.epoch_ms, p.bit_ts}
  end
  for _, name in ipairs({'longest_ms', 'last_ms', 'fence_from_ms', 'fence_until_ms', 'grants', 'oldest'}) do
    p[name] = tonumber(p[name])
  end
  p.level_list = {}
  for level in string.gmatch(p.levels, '%d+') do p.level_list[#p.level_list + 1] = tonumber(level) end
  return p
end

local function add_level(p, bit_seq)
  for _, level in ipairs(p.level_list) do
    if level == bit_seq then return false end
  end
  p.level_list[#p.level_list + 1] = bit_seq
  p.levels = table.concat(p.level_list, ' ')
  return true
end

-- new_pool writes the record of a pool that has none. Records of slots may
-- have outlived it, and then count.
local function new_pool(s, fence_from, fence_until, fence_reason)
  local p = {
    format = '1', epoch_ms = A.epoch_ms, bit_ts = A.bit_ts, run_id = s.run_id, repl_id = s.repl_id, repl_in = s.repl_in,
    levels = '', level_list = {}, longest_ms = tonumber(A.longest_ms), last_ms = 0,
    fence_from_ms = fence_from, fence_until_ms = fence_until, fence_reason = fence_reason, grants = 0, oldest = 1,
  }
  for _, member in ipairs(redis.call('ZRANGE', base .. 'slots', 0, -1)) do
    add_level(p, tonumber(string.match(member, '^%d+')))
  end
  -- What is numbered by the record, or follows from it, begins anew.
  redis.call('UNLINK', base .. 'history', base .. 'held', base .. 'requests', base .. 'rings')
  local fields = {}
  for _, name in ipairs(pool_fields) do
    local v = p[name]
    fields[#fields + 1] = name
    fields[#fields + 1] = type(v) == 'number' and int(v) or v
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  return p
end

-- lengthen has the fence outlast the caller's longest lease. Where that is longer than any
-- known, grants of its own may be among what was lost.
local function lengthen(p)
  local longest = tonumber(A.longest_ms)
  if longest <= p.longest_ms then return end
  p.longest_ms = longest
  redis.call('HSET', KEYS[1], 'longest_ms', int(longest))
  if p.fence_from_ms > 0 and not (p.fence_reason == 'changed' and A.failover_fence_ms) then
    p.fence_until_ms = math.max(p.fence_until_ms, p.fence_from_ms + longest)
    redis.call('HSET', KEYS[1], 'fence_until_ms', int(p.fence_until_ms))
  end
end

-- admit is the fence: it returns the pool's record, and the answer that refuses
-- grants and extensions while grants that the store does not know may be alive.
local function admit(p, s, t)
  local longest = tonumber(A.longest_ms)
  if not p then
    p = new_pool(s, t, t + longest, 'missing')
  elseif forgetful(p, s) then
    longest = math.max(longest, p.longest_ms)
    -- A server whose clock is behind the one before it waits that much longer:
    -- what was lost ends by the clock that it was granted by.
    local from = math.max(t, p.last_ms)
    local fence_until = from + longest
    if A.failover_fence_ms then fence_until = t + tonumber(A.failover_fence_ms) end
    -- What is confirmed by replicas is not lost by a failover. A lost pool
    -- record is another matter, and that fence stands.
    if not (p.fence_reason == 'missing' and t < p.fence_until_ms) then p.fence_reason = 'changed' end
    p.fence_until_ms = math.max(p.fence_until_ms, fence_until)
    p.fence_from_ms, p.longest_ms = from, longest
    redis.call('HSET', KEYS[1], 'run_id', s.run_id, 'repl_id', s.repl_id, 'repl_in', s.repl_in, 'longest_ms', int(longest),
      'fence_from_ms', int(from), 'fence_until_ms', int(p.fence_until_ms), 'fence_reason', p.fence_reason)
  elseif p.repl_id ~= s.repl_id or p.repl_in ~= s.repl_in then
    redis.call('HSET', KEYS[1], 'repl_id', s.repl_id, 'repl_in', s.repl_in)
  end
  lengthen(p)
  if t < p.fence_until_ms then return p, {'fenced', int(p.fence_until_ms), p.fence_reason} end
  return p
end

if A.commands then
  local refused = acl(A.commands, KEYS[1])
  if refused then return refused end
end
local s, refusal = server()
if refusal then return refusal end
local p, other = pool()
if other then return other end
