-- secrets: the secrets of the records that a release or an extension may mean,
-- since HMAC is beyond a script.
local function secrets()
  local _, refusal = server()
  if refusal then return refusal end
  local p, other = pool()
  if other then return other end
  local reply = {'ok'}
  for _, level in ipairs(p and p.level_list or {}) do
    if A.bit_seq == '-1' or tonumber(A.bit_seq) == level then
      local secret = redis.call('HGET', slot_key(level, tonumber(A.id)), 'secret')
      if secret then
        reply[#reply + 1] = int(level)
        reply[#reply + 1] = secret
      end
    end
  end
  return reply
end

return secrets()
