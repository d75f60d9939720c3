-- verify: what is recorded of the slots that claims (1 to count) name: the secret,
-- whether it was released, and when it was granted. What follows from that the
-- caller says, since HMAC is beyond a script.
local function verify()
  local s, refusal = server()
  if refusal then return refusal end
  local p, other = pool()
  if other then return other end
  -- What a store lacks that may have forgotten says nothing, as long as nobody
  -- is granted anything: the fence outlasts every lease that was lost.
  local fenced = not p or forgetful(p, s) and not A.failover_fence_ms or clock() < p.fence_until_ms
  local reply = {'ok', fenced and '1' or '0'}
  for i = 1, tonumber(A.count) do
    local f = redis.call('HMGET', slot_key(tonumber(A['bit_seq' .. i]), tonumber(A['id' .. i])), 'secret', 'released', 'created')
    for k = 1, 3 do reply[#reply + 1] = f[k] or '' end
  end
  return reply
end

return verify()
