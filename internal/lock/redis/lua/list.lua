-- list: the live leases among the next keys of a tenant: the last key looked at,
-- whether there may be more, and the leases.
local function list()
  local _, refusal = server()
  if refusal then return refusal end
  local t = clock()
  local keys = redis.call('ZRANGE', A.index, A.after == '' and '-' or '(' .. A.after, '+', 'BYLEX', 'LIMIT', 0, A.stretch)
  local reply = {'ok', keys[#keys] or '', #keys == tonumber(A.stretch) and '1' or '0'}
  for _, key in ipairs(keys) do
    local k = read(KEYS[1] .. key, t)
    if k.status == 'ACTIVE' then
      reply[#reply + 1] = key
      for _, word in ipairs(shown(k, t, '0')) do reply[#reply + 1] = word end
    end
  end
  return reply
end

return list()
