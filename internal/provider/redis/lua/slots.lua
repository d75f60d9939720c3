-- slots: what is recorded of the slots that the caller names (1 to count), or of the
-- machine IDs in any bit_seq: the secret, whether it was released, and when it was
-- granted. What follows from that the caller says, since HMAC is beyond a script.
-- It lengthens the fence for a caller with a longer term.

if p then lengthen(p) end
-- What a store lacks that may have forgotten says nothing, as long as nothing is
-- granted: the fence outlasts every lease that was lost.
local fenced = not p or forgetful(p, s) and not A.failover_fence_ms or clock() < p.fence_until_ms
local reply = {'ok', fenced and '1' or '0'}
for i = 1, tonumber(A.count) do
  for _, level in ipairs(A.any and (p and p.level_list or {}) or {tonumber(A['bit_seq' .. i])}) do
    local f = redis.call('HMGET', slot_key(level, tonumber(A['id' .. i])), 'secret', 'released', 'created')
    reply[#reply + 1] = int(level)
    for k = 1, 3 do reply[#reply + 1] = f[k] or '' end
  end
end
return reply
