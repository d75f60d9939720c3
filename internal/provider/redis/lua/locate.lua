-- locate: who held the low bits at a time, as far as the history reaches.
if not p then return {'ok', '0', '0'} end
local at = tonumber(A.at_ms)
local reply = {'ok', p.epoch_ms, p.bit_ts}
for _, level in ipairs(p.level_list) do
  local prefix = held_prefix(level, math.floor(tonumber(A.low) / 2 ^ level))
  -- The intervals of one slot are disjoint: the last that began before holds
  -- the time, or none does. Some that were given back at once may follow it.
  local members = redis.call('ZRANGE', base .. 'held', '[' .. prefix .. wide(at) .. ';', '[' .. prefix,
    'BYLEX', 'REV', 'LIMIT', 0, A.limit)
  for _, member in ipairs(members) do
    local g = read_history(tonumber(string.match(member, '(%d+)$')))
    local till = g and (g.released and math.min(g.expired, g.till) or g.expired)
    if g and g.created <= at and at < till then tell(reply, g) end
  end
end
return reply
