-- change: renews or releases a lease. A fence is no obstacle: what the store
-- knows is its owner's.
local function change()
  local p, t, refusal = begin()
  if refusal then return refusal end
  local k = read(KEYS[1], t)
  local known = replay(k, t)
  if known then return known end
  if k.token == 0 then return {'notowned', 'none'} end
  if k.owner ~= A.owner then return {'notowned', 'owner'} end
  if A.lease ~= '' and A.lease ~= k.lease then return {'notowned', 'lease'} end
  if k.status == 'RELEASED' then return {'notowned', 'released'} end
  if k.status == 'EXPIRED' then return {'expired', 'over'} end
  if A.op == 'renew' then
    k.expires, k.answers = t + tonumber(A.ttl_ms), k.answers + 1
    note_term(p, t, k.token)
  else
    k.status = 'RELEASED'
    freed()
  end
  if A.request ~= '' then remember(k, receipt(k, A.request, A.op, A.owner, A.ttl_ms)) end
  write(k)
  return shown(k, t, '0')
end

return change()
