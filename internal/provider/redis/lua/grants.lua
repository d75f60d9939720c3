-- Records of slots, and the history of grants.
--
--   <pool>:slot:<bit_seq>:<id>  HASH  the slot's latest grant; never deleted
--   <pool>:slots                ZSET  bit_seq:id, scored by the slot's start
--   <pool>:history              HASH  number of a grant -> JSON array, see write_history
--   <pool>:held                 ZSET  bit_seq:id:created:number of the grants in history
--   <pool>:requests             HASH  service NUL request ID -> first and last number

local slot_fields = {
  'created', 'expired', 'end', 'released', 'secret', 'service', 'request', 'meta', 'grant', 'answers',
}

-- slot reads the record of a slot, nil if it was never granted.
local function slot(bit_seq, id)
  local f = redis.call('HMGET', slot_key(bit_seq, id), unpack(slot_fields))
  if not f[1] then return nil end
  local rec = {bit_seq = bit_seq, id = id}
  for i, name in ipairs(slot_fields) do rec[name] = f[i] end
  rec.created, rec.expired, rec.till = tonumber(rec.created), tonumber(rec.expired), tonumber(rec['end'])
  rec.grant, rec.released = tonumber(rec.grant), rec.released == '1'
  return rec
end

local function held_prefix(bit_seq, id) return string.format('%02d', bit_seq) .. ':' .. wide(id) .. ':' end

local function held_member(g) return held_prefix(g.bit_seq, g.id) .. wide(g.created) .. ':' .. int(g.number) end

-- Everything in the array is text: JSON would round numbers.
local function write_history(g)
  redis.call('HSET', base .. 'history', int(g.number), cjson.encode({
    int(g.bit_seq), int(g.id), int(g.created), int(g.expired), int(g.till), g.released and '1' or '0',
    g.service, g.request, g.meta,
  }))
end

local function read_history(number)
  local text = redis.call('HGET', base .. 'history', int(number))
  if not text then return nil end
  local f = cjson.decode(text)
  return {
    number = number, bit_seq = tonumber(f[1]), id = tonumber(f[2]), created = tonumber(f[3]),
    expired = tonumber(f[4]), till = tonumber(f[5]), released = f[6] == '1', service = f[7], request = f[8], meta = f[9],
  }
end

-- note brings the history up to date with a slot's record. The history may be
-- younger than the record: its numbers are checked.
local function note(rec)
  local g = read_history(rec.grant)
  if g and g.bit_seq == rec.bit_seq and g.id == rec.id and g.created == rec.created then
    g.expired, g.till, g.released = rec.expired, rec.till, rec.released
    write_history(g)
  end
end

local function request_field(service, request) return service .. '\0' .. request end

-- forget removes at most n grants from the history that ended long ago, or are
-- more than it may hold. The records of slots are not touched.
local function forget(p, n, t)
  local first = p.oldest
  while n > 0 and p.oldest <= p.grants do
    local g = read_history(p.oldest)
    if g then
      if p.grants - p.oldest < tonumber(A.history_max) and g.till + tonumber(A.history_ms) > t then break end
      redis.call('HDEL', base .. 'history', int(p.oldest))
      redis.call('ZREM', base .. 'held', held_member(g))
      if g.request ~= '' then redis.call('HDEL', base .. 'requests', request_field(g.service, g.request)) end
    end
    p.oldest = p.oldest + 1
    n = n - 1
  end
  return p.oldest ~= first
end

-- end_grant ends a grant early, in its record, the history and the rings.
local function end_grant(p, rec, till)
  local before = rec.till
  rec.till, rec.released = till, true
  redis.call('HSET', slot_key(rec.bit_seq, rec.id), 'end', int(till), 'released', '1')
  note(rec)
  if till ~= before then lower(p, all_rings(), rec.bit_seq, rec.id, before, till) end
end

-- tell adds a record to an answer.
local function tell(reply, g)
  for _, v in ipairs({int(g.bit_seq), int(g.id), int(g.created), int(g.expired), int(g.till),
    g.released and '1' or '0', g.service, g.meta}) do
    reply[#reply + 1] = v
  end
end
