-- acquire: grants a lease, or says why not.

-- next_token is greater than that of every earlier lease of the key. One that
-- has no record, or one from another life of the store, may have had leases that
-- nobody remembers: no token overtakes the time in microseconds.
local function next_token(k, p, t)
  if k.life == int(p.life) then return k.token + 1 end
  return math.max(k.token, p.highest, t * 1000) + 1
end

-- tidy takes at most two keys out of the index that are not held any more: more
-- than a grant adds, on average, once half of them are such.
local function tidy(t)
  local base = string.sub(KEYS[1], 1, #KEYS[1] - #A.key)
  for _, key in ipairs(redis.call('ZRANDMEMBER', A.index, 2)) do
    local f = redis.call('HMGET', base .. key, 'status', 'expires')
    if f[1] ~= 'ACTIVE' or t >= tonumber(f[2]) then redis.call('ZREM', A.index, key) end
  end
end

local function acquire()
  local p, t, refusal = begin()
  if refusal then return refusal end
  local k = read(KEYS[1], t)
  local known = replay(k, t)
  if known then return known end
  if k.status == 'ACTIVE' then return {'held', k.owner, int(k.token), int(k.expires), int(t), k.request} end
  if t < p.fence_until_ms then return {'fenced', int(p.fence_until_ms), int(t), p.fence_reason} end
  local token = next_token(k, p, t)
  if token > tonumber(A.max_token) then return {'usedup', int(token - 1)} end
  if k.request ~= '' then remember(k, receipt(k, k.request, 'acquire', k.owner, k.ttl)) end
  k.token, k.lease, k.owner, k.status = token, A.lease, A.owner, 'ACTIVE'
  k.acquired, k.expires = t, t + tonumber(A.ttl_ms)
  k.request, k.ttl, k.life, k.answers = A.request, A.ttl_ms, int(p.life), 1
  write(k)
  redis.call('ZADD', A.index, 0, A.key)
  tidy(t)
  note_term(p, t, token)
  return shown(k, t, '0')
end

return acquire()
