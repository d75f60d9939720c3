-- hello: whether this server, this user and the store can be used at all.
local function hello()
  local refused = acl(A.commands, KEYS[1])
  if refused then return refused end
  local _, refusal = server()
  if refusal then return refusal end
  local _, other = store()
  return other or {'ok'}
end

return hello()
