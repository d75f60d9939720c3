-- init: declares that nobody holds a lease that the store does not know.
local function init()
  local p, t, refusal = begin()
  if refusal then return refusal end
  if t < p.fence_until_ms then
    p.fence_from_ms, p.fence_until_ms, p.fence_reason = 0, 0, ''
    note(p, 'fence_from_ms', 'fence_until_ms', 'fence_reason')
  end
  return {'ok'}
end

return init()
