-- list: a page of records in the order of their slots, after (start, bit_seq).
if not p then return {'ok', '0', '0', '0'} end
local reply = {'ok', p.epoch_ms, p.bit_ts, '0'}
local page = redis.call('ZRANGE', base .. 'slots', A.start, '+inf', 'BYSCORE', 'LIMIT', 0, A.limit)
for _, member in ipairs(page) do
  local bit_seq, id = string.match(member, '^(%d+):(%d+)$')
  bit_seq, id = tonumber(bit_seq), tonumber(id)
  if id * 2 ^ bit_seq > tonumber(A.start) or bit_seq > tonumber(A.bit_seq) then
    tell(reply, slot(bit_seq, id))
  end
end
if #page == tonumber(A.limit) then reply[4] = '1' end -- there may be more
return reply
