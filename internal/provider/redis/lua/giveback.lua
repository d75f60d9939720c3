-- giveback: ends grants at their beginning that too few replicas have
-- confirmed, so that their slots are free as if nothing had been. A lease that
-- was handed out twice stays: the other caller's answer may have been confirmed.
local given = 0
for i = 1, tonumber(A.count) do
  local rec = p and slot(tonumber(A.bit_seq), tonumber(A['id' .. i]))
  if rec and rec.secret == A['secret' .. i] and rec.answers == '1' and not rec.released then
    end_grant(p, rec, rec.created)
    given = given + 1
  end
end
if given == tonumber(A.count) and A.request ~= '' then
  redis.call('HDEL', base .. 'requests', request_field(A.service, A.request))
end
return {'ok', int(given)}
