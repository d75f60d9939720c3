-- hello: whether this server and this user can be used at all; and what the server and
-- the store's record say. Channels begin with the record's name and a colon.
local function hello()
  local refused = acl(A.commands, KEYS[1] .. ':')
  if refused then return refused end
  local s, refusal = server()
  if refusal then return refusal end
  return {'ok', s.run_id, s.repl_id, s.repl_in, s.repl_id2 == no_replid and '0' or '1', int(clock()), redis.call('GET', KEYS[1]) or ''}
end

return hello()
