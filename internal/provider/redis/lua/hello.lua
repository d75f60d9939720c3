-- hello: whether this server, this user and the pool can be used at all.
local function hello()
  -- A command that is refused in the middle of a script would leave half of a
  -- grant behind.
  for command in string.gmatch(A.commands, '%S+') do
    if not redis.acl_check_cmd(command, KEYS[1], '0', '0') and not redis.acl_check_cmd(command, KEYS[1]) then
      return {'acl', command}
    end
  end
  local s, refusal = server()
  if refusal then return refusal end
  local _, other = pool()
  return other or {'ok', s.version}
end

return hello()
