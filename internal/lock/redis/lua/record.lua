-- Records of locks, and the transition of package lock (core.go) in the order of
-- its checks.

local record_fields = {'token', 'lease', 'owner', 'status', 'acquired', 'expires', 'request', 'ttl', 'life', 'answers', 'receipts'}

-- read is the key's record, with token 0 where there is none.
local function read(name, t)
  local f = redis.call('HMGET', name, unpack(record_fields))
  if not f[1] then return {token = 0, request = '', life = '', receipts = ''} end
  local k = {}
  for i, field in ipairs(record_fields) do k[field] = f[i] end
  k.token, k.acquired, k.expires, k.answers = tonumber(k.token), tonumber(k.acquired), tonumber(k.expires), tonumber(k.answers)
  if k.status == 'ACTIVE' and t >= k.expires then k.status = 'EXPIRED' end
  return k
end

-- write keeps the record until the key has been idle for long.
local function write(k)
  local fields = {}
  for _, field in ipairs(record_fields) do
    fields[#fields + 1] = field
    fields[#fields + 1] = type(k[field]) == 'number' and int(k[field]) or k[field]
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIREAT', KEYS[1], int(k.expires + tonumber(A.keep_ms)))
end

-- shown is the answer that tells of a lease.
local function shown(k, t, repeated)
  return {'ok', repeated, k.lease, k.owner, int(k.token), k.status, int(k.acquired), int(k.expires), int(t)}
end

-- freed has the key listed no more, and tells those who wait for it.
local function freed()
  redis.call('ZREM', A.index, A.key)
  redis.call('PUBLISH', KEYS[1], 'free')
end

-- receipt is a line; what is in it has no spaces.
local function receipt(k, request, op, owner, ttl)
  return '\n' .. table.concat({request, op, owner, ttl, k.lease, int(k.token), int(k.acquired), int(k.expires)}, ' ')
end

local function remember(k, line)
  k.receipts = k.receipts .. line
  local lines, at = 0, 1
  while at do
    lines, at = lines + 1, string.find(k.receipts, '\n', at + 1, true)
  end
  if lines > tonumber(A.max_receipts) then k.receipts = string.sub(k.receipts, (string.find(k.receipts, '\n', 2, true))) end
end

local function find(k)
  if k.token > 0 and k.request == A.request then
    return {op = 'acquire', owner = k.owner, ttl = k.ttl, token = k.token}
  end
  local _, at = string.find(k.receipts, '\n' .. A.request .. ' ', 1, true)
  if not at then return nil end
  local d = {}
  d.op, d.owner, d.ttl, d.lease, d.token, d.acquired, d.expires = string.match(k.receipts, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)', at + 1)
  d.token, d.acquired, d.expires = tonumber(d.token), tonumber(d.acquired), tonumber(d.expires)
  return d
end

-- replay is the answer to a request that was carried out before, nil when it was
-- not. It writes, because replicas are asked for what this connection wrote; and
-- from then on more than one caller may know the lease.
local function replay(k, t)
  local d = A.request ~= '' and find(k)
  if not d then return nil end
  if d.op ~= A.op or d.owner ~= A.owner or d.ttl ~= A.ttl_ms or A.op ~= 'acquire' and A.lease ~= '' and A.lease ~= d.lease then
    return {'reused', 'other', d.op, d.owner}
  end
  if d.op ~= 'release' and (k.token ~= d.token or k.status ~= 'ACTIVE') then
    if d.op == 'acquire' then return {'reused', 'ended'} end
    if k.token == d.token and k.status == 'EXPIRED' then return {'expired', 'renewed'} end
    return {'notowned', 'renewed'}
  end
  redis.call('HINCRBY', KEYS[1], 'answers', 1)
  if d.op ~= 'release' then return shown(k, t, '1') end
  d.status = 'RELEASED'
  return shown(d, t, '1')
end
