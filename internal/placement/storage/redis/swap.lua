-- swap: replaces a cell that is what the caller read. One that has the new value
-- already was written by an attempt whose answer was lost: it is written again,
-- because replicas are asked for what this connection wrote.
local function swap()
  local s, refusal = server()
  if refusal then return refusal end
  if s.replicas < tonumber(A.min_replicas) then return {'replicas', int(s.replicas)} end
  local value = redis.call('GET', KEYS[1]) or ''
  if value ~= A.read and value ~= A.next then return {'other'} end
  redis.call('SET', KEYS[1], A.next)
  return {'ok'}
end

return swap()
