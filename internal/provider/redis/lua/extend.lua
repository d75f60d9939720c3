-- extend: moves the end of a living lease to one term from now, if the record has
-- the secret that the caller has checked the signature with.

-- other_end is the greatest end of the other records whose slots overlap. It
-- looks at every finer slot inside: extending is rare.
local function other_end(p, rec)
  local size, till = 2 ^ rec.bit_seq, 0
  local start = rec.id * size
  for _, level in ipairs(p.level_list) do
    if level > rec.bit_seq then till = math.max(till, slot_end(level, math.floor(start / 2 ^ level))) end
  end
  for _, member in ipairs(redis.call('ZRANGE', base .. 'slots', int(start), int(start + size - 1), 'BYSCORE')) do
    local level, id = string.match(member, '^(%d+):(%d+)$')
    if tonumber(level) < rec.bit_seq then till = math.max(till, slot_end(tonumber(level), tonumber(id))) end
  end
  return till
end

local t = clock()
p, refusal = admit(p, s, t)
if refusal then return refusal end
count('extend_ttl_count')
local rec = slot(tonumber(A.bit_seq), tonumber(A.id))
if not rec then return {'notfound'} end
if rec.secret ~= A.secret then
  count('extend_ttl_ownership_error')
  return {'badsignature'}
end
-- A clock that was ahead for a while may have had an overlapping slot granted.
if rec.released or t >= rec.expired or other_end(p, rec) > t then
  count('extend_ttl_expire_warning')
  return {'conflict'}
end
if s.replicas < tonumber(A.min_replicas) then return {'replicas', int(s.replicas)} end
local before = rec.till
-- A request that knows an earlier end is a repetition, and moves nothing. It is
-- written all the same, so that replicas can confirm it.
local longer = t + tonumber(A.term_ms)
if tonumber(A.expired) >= rec.expired and longer > rec.expired then
  rec.expired = longer
  rec.till = math.max(rec.till, rec.expired + tonumber(A.quarantine_ms))
end
redis.call('HSET', slot_key(rec.bit_seq, rec.id), 'expired', int(rec.expired), 'end', int(rec.till))
note(rec)
if rec.till ~= before then raise(all_rings(), rec.bit_seq, rec.id, before, rec.till) end
count('extend_ttl_success')
return {'ok', int(rec.created), int(rec.expired), int(rec.till)}
