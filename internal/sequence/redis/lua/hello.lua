-- hello: whether this server and this user can be used at all.
local function hello()
  local refused = acl(A.commands, A.store)
  if refused then return refused end
  local _, refusal = server()
  return refusal or {'ok'}
end

return hello()
