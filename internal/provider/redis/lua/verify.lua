-- verify: which of the leases (1 to count) are no longer the caller's.
local function verify()
  local s, refusal = server()
  if refusal then return refusal end
  local p, other = pool()
  if other then return other end
  -- What a store lacks that may have forgotten says nothing, as long as nobody
  -- is granted anything: the fence outlasts every lease that was lost.
  local fenced = not p or forgetful(p, s) and not A.failover_fence_ms or clock() < p.fence_until_ms
  local reply = {'ok'}
  for i = 1, tonumber(A.count) do
    local f = redis.call('HMGET', slot_key(tonumber(A['bit_seq' .. i]), tonumber(A['id' .. i])), 'secret', 'released', 'created')
    local lost
    if f[1] == A['secret' .. i] then
      lost = f[2] ~= '0'
    elseif f[1] and tonumber(f[3]) >= tonumber(A['created' .. i]) then
      lost = true -- taken over
    else
      lost = not fenced -- the record is gone, or an older one is back
    end
    if lost then reply[#reply + 1] = int(i) end
  end
  return reply
end

return verify()
