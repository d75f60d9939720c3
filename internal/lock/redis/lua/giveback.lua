-- giveback: ends a lease that was granted just now and that too few replicas
-- have confirmed. The request that was granted it can be granted another. A
-- lease that somebody else was told of stays: that answer may be confirmed.
local function giveback()
  local _, refusal = server()
  if refusal then return refusal end
  local k = read(KEYS[1], clock())
  if k.lease ~= A.lease or k.status ~= 'ACTIVE' or k.answers ~= 1 then return {'kept'} end
  k.status, k.request = 'RELEASED', ''
  freed()
  write(k)
  return {'ok'}
end

return giveback()
