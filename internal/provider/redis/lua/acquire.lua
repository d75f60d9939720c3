-- acquire: grants leases to one request, or says why not.

-- answer is the array that tells of the leases. `fresh` is 1 where they were
-- granted just now, to be given back if replicas do not confirm them.
local function answer(fresh, leases)
  local reply = {'ok', fresh}
  for _, l in ipairs(leases) do
    for _, v in ipairs({int(l.bit_seq), int(l.id), int(l.created), int(l.expired), int(l.till), l.secret}) do
      reply[#reply + 1] = v
    end
  end
  return reply
end

-- known_request is what is remembered of the request, nil when it was not granted
-- before.
local function known_request()
  return A.request ~= '' and redis.call('HGET', base .. 'requests', request_field(A.service, A.request)) or nil
end

-- replay is the answer to a request that was granted before, nil when it was
-- not.
local function replay(t)
  local known = known_request()
  if not known then return nil end
  local first, last = string.match(known, '^(%d+) (%d+)$')
  local leases = {}
  for number = tonumber(first), tonumber(last) do
    local g = read_history(number)
    local rec = g and slot(g.bit_seq, g.id)
    if not rec or rec.grant ~= number or rec.created ~= g.created or rec.released or t >= rec.expired then
      return {'conflict'}
    end
    leases[#leases + 1] = rec
  end
  -- From now on more than one caller may hold the leases, and none may give
  -- them back because replicas have not confirmed its own answer.
  for _, rec in ipairs(leases) do redis.call('HINCRBY', slot_key(rec.bit_seq, rec.id), 'answers', 1) end
  return answer('0', leases)
end

-- own_ring is the one that the request is granted from. A new one begins at a
-- random machine ID: another store may be in use unknown to this one.
local function own_ring(p, rings)
  local name = A.bit_seq .. ':' .. A.low .. '-' .. A.high
  for _, r in ipairs(rings) do
    if r.name == name then return r end
  end
  if #rings >= tonumber(A.max_rings) then
    local oldest = 1
    for i, r in ipairs(rings) do
      if r.used < rings[oldest].used then oldest = i end
    end
    drop_ring(rings[oldest])
    table.remove(rings, oldest)
  end
  local r = ring_of(name)
  r.cursor, r.used = tonumber(A.cursor), p.grants
  build(r)
  save_ring(r)
  rings[#rings + 1] = r
  return r
end

-- grant writes one grant. It does not rely on what chose the machine ID: the
-- records themselves are asked once more whether it is free.
local function grant(p, rings, r, id, t, secret)
  if available(p, r, id) > t then return nil end
  p.grants = p.grants + 1
  local g = {
    number = p.grants, bit_seq = r.bit_seq, id = id, created = t, expired = t + tonumber(A.term_ms), released = false,
    till = t + tonumber(A.term_ms) + tonumber(A.quarantine_ms), secret = secret,
    service = A.service, request = A.request, meta = A.meta,
  }
  local before = slot_end(r.bit_seq, id)
  redis.call('HSET', slot_key(r.bit_seq, id), 'created', int(g.created), 'expired', int(g.expired), 'end', int(g.till),
    'released', '0', 'secret', secret, 'service', g.service, 'request', g.request, 'meta', g.meta,
    'client', A.client, 'grant', int(g.number), 'answers', '1')
  redis.call('ZADD', base .. 'slots', int(id * r.size), string.format('%02d', r.bit_seq) .. ':' .. int(id))
  if add_level(p, r.bit_seq) then redis.call('HSET', KEYS[1], 'levels', p.levels) end
  write_history(g)
  redis.call('ZADD', base .. 'held', 0, held_member(g))
  r.cursor, r.used = id, g.number
  raise(rings, r.bit_seq, id, before, g.till)
  return g
end

-- grant_all grants up to as many leases as there are secrets.
local function grant_all(p, t)
  local rings = all_rings()
  local r = own_ring(p, rings)
  local first, leases, refusal = p.grants + 1, {}, nil
  for secret in string.gmatch(A.secrets, '%S+') do
    local id, free_at = choose(r)
    if free_at > t then
      refusal = {'full', int(free_at)}
      break
    end
    local l = grant(p, rings, r, id, t, secret)
    if not l then
      -- The ring contradicts the records, which hold. It is built anew.
      drop_ring(r)
      refusal = {'inconsistent', int(id)}
      break
    end
    leases[#leases + 1] = l
  end
  if #leases == 0 then return refusal end -- else some are better than none
  if not (refusal and refusal[1] == 'inconsistent') then save_ring(r) end
  if A.request ~= '' then
    redis.call('HSET', base .. 'requests', request_field(A.service, A.request), int(first) .. ' ' .. int(p.grants))
  end
  -- Twice as many as come: a backlog shrinks, and no acquire is burdened.
  forget(p, 2 * #leases, t)
  redis.call('HSET', KEYS[1], 'grants', int(p.grants), 'oldest', int(p.oldest), 'last_ms', int(t))
  return answer('1', leases)
end

local t = clock()
if t < tonumber(A.clock_from_ms) or t >= tonumber(A.clock_to_ms) then return {'clock', int(t)} end
-- A client whose first answer was lost was counted with the request that it repeats.
if A.join and not known_request() then count('client_id_count') end
count('client_get_id_count')
p, refusal = admit(p, s, t)
if refusal then
  count('get_id_fenced')
  return refusal
end
if s.replicas < tonumber(A.min_replicas) then return {'replicas', int(s.replicas)} end
local reply = replay(t) or grant_all(p, t)
if reply[1] == 'ok' then count('client_get_id_success') end
if reply[1] == 'full' then count('get_id_no_available_id') end
return reply
