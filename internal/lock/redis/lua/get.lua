-- get: the key's latest lease.
local function get()
  local _, refusal = server()
  if refusal then return refusal end
  local t = clock()
  local k = read(KEYS[1], t)
  if k.token == 0 then return {'none'} end
  return shown(k, t, '0')
end

return get()
