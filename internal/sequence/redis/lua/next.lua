-- next: hands out values.

-- le compares two decimal numbers that are 0 or more; '-1' is less than all.
local function le(a, b)
  if b == '-1' then return false end
  return #a < #b or #a == #b and a <= b
end

-- sequence reads the key, nil where there is none.
local function sequence()
  local f = redis.call('HMGET', KEYS[1], 'options', 'last', 'used', 'ttl', 'life', 'done')
  if not f[1] then return nil end
  return {options = f[1], last = f[2], used = tonumber(f[3]), ttl = tonumber(f[4]), life = f[5], done = f[6]}
end

-- replay is the answer to a request that was carried out before, nil when it
-- was not. It is a use of the key, also of one that is fenced; and it writes,
-- because replicas are asked for what this connection wrote.
local function replay(k, t)
  if A.request == '' then return nil end
  local _, at = string.find(k.done, '\n' .. A.request .. ' ', 1, true)
  if not at then return nil end
  local last, count = string.match(k.done, '^(%d+) (%d+)', at + 1)
  if tonumber(count) < tonumber(A.at_least) or tonumber(count) > tonumber(A.asked) then return {'reused'} end
  redis.call('HSET', KEYS[1], 'used', int(math.max(k.used, t)))
  expire(k.ttl)
  return {'ok', last, count}
end

-- fence is the answer that hands out nothing, where values that were handed out
-- may be forgotten; and whether the key starts over because nobody can have used
-- it since.
local function fence(k, l, t)
  if knows(l, t) or k and k.life == l.life then return nil, false end
  local ttl = k and k.ttl or tonumber(A.ttl)
  if ttl == 0 then return {'fenced', '0', l.reason} end
  local till = math.max(l.from_ms, k and k.used or 0) + ttl
  if t < till then return {'fenced', int(till), l.reason} end
  return nil, true
end

-- receipts adds the request to those that were carried out.
local function receipts(k, count)
  if A.request == '' then return k.done end
  local done = k.done .. '\n' .. A.request .. ' ' .. k.last .. ' ' .. count
  local _, lines = string.gsub(done, '\n', '')
  if lines > tonumber(A.max_receipts) then done = string.match(done, '^\n[^\n]*(.*)$') end
  return done
end

local function next_values()
  local l, t, refusal = begin()
  if refusal then return refusal end
  local k = sequence()
  if k and k.ttl > 0 and (knows(l, t) or k.life == l.life) and t >= k.used + k.ttl then k = nil end
  if k and k.options == A.options then
    local known = replay(k, t)
    if known then return known end
  end
  local fenced, over = fence(k, l, t)
  if fenced then return fenced end
  if over then k = nil end
  if k and k.options ~= A.options then return {'options', k.options} end
  local count = A.count
  if k and le(k.last, A.limit) then
    redis.call('HINCRBY', KEYS[1], 'last', A.add)
    k.last = redis.call('HGET', KEYS[1], 'last')
  elseif k and le(k.last, A.limit_least) then
    return {'partial', k.last}
  elseif k and A.reset == '0' then
    return {'exhausted', k.last}
  else
    if not k then redis.call('DEL', KEYS[1]) end
    k = k or {options = A.options, used = t, ttl = tonumber(A.ttl), done = ''}
    k.last, count = A.fresh_last, A.fresh_count
    redis.call('HSET', KEYS[1], 'last', k.last)
  end
  k.used = math.max(k.used, t)
  k.done = receipts(k, count)
  keep(k, l)
  return {'ok', k.last, count}
end

return next_values()
