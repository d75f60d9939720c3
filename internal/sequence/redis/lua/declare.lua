-- declare: has a key count on from a value that the operator names.
local function declare()
  local l, t, refusal = begin()
  if refusal then return refusal end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'last', A.last)
  keep({options = A.options, used = t, ttl = tonumber(A.ttl), done = ''}, l)
  return {'ok'}
end

return declare()
