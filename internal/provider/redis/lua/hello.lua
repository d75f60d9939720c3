-- hello: whether this server, this user and the pool can be used at all.
local function hello()
  local refused = acl(A.commands, KEYS[1])
  if refused then return refused end
  local s, refusal = server()
  if refusal then return refusal end
  local _, other = pool()
  return other or {'ok', s.version}
end

return hello()
