-- Which machine IDs are free when: the rings of a pool, each a range of machine
-- IDs of one bit_seq, kept as runs of neighbours that are free from the same
-- time on. Everything here follows from the records of slots.
--
--   <pool>:rings                HASH  bit_seq:low-high -> cursor, number of the last grant
--   <pool>:ring:<name>:runs     ZSET  low:high:free_at, in the order of machine IDs
--   <pool>:ring:<name>:free     ZSET  free_at:low, the longest free first
--   <pool>:ring:<name>:inside   ZSET  id:end:bit_seq:finer_id, the finer records in each machine ID
--
-- All scores are 0, so that members are found by their text in O(log n).

local function slot_key(bit_seq, id) return base .. 'slot:' .. int(bit_seq) .. ':' .. int(id) end

local function slot_end(bit_seq, id)
  return tonumber(redis.call('HGET', slot_key(bit_seq, id), 'end') or 0)
end

local function ring_of(name)
  local bit_seq, low, high = string.match(name, '^(%d+):(%d+)%-(%d+)$')
  local key = base .. 'ring:' .. name .. ':'
  return {
    name = name, bit_seq = tonumber(bit_seq), low = tonumber(low), high = tonumber(high), size = 2 ^ tonumber(bit_seq),
    runs = key .. 'runs', free = key .. 'free', inside = key .. 'inside',
  }
end

local function drop_ring(r)
  redis.call('UNLINK', r.runs, r.free, r.inside)
  redis.call('HDEL', base .. 'rings', r.name)
end

-- all_rings is the rings whose runs and order are there. It drops the others, and the next
-- acquire builds them. That `inside` was deleted does not show: it may be empty.
local function all_rings()
  local all = {}
  local flat = redis.call('HGETALL', base .. 'rings')
  for i = 1, #flat, 2 do
    local r = ring_of(flat[i])
    local cursor, used = string.match(flat[i + 1], '^(%d+) (%d+)$')
    r.cursor, r.used = tonumber(cursor), tonumber(used)
    if redis.call('ZRANGE', r.runs, 0, 0)[1] and redis.call('ZRANGE', r.free, 0, 0)[1] then
      all[#all + 1] = r
    else
      drop_ring(r)
    end
  end
  return all
end

local function save_ring(r)
  redis.call('HSET', base .. 'rings', r.name, int(r.cursor) .. ' ' .. int(r.used))
end

-- within is the machine IDs of the ring that a slot overlaps; nil if none.
local function within(r, bit_seq, id)
  local start = id * 2 ^ bit_seq
  local low = math.floor(start / r.size)
  local high = math.max(math.floor((start + 2 ^ bit_seq - 1) / r.size), low)
  low, high = math.max(low, r.low), math.min(high, r.high)
  if low <= high then return low, high end
end

local function run_of(member)
  local low, high, free_at = string.match(member, '^(%d+):(%d+):(%d+)$')
  return {member = member, low = tonumber(low), high = tonumber(high), free_at = tonumber(free_at)}
end

local function put_run(r, low, high, free_at)
  redis.call('ZADD', r.runs, 0, wide(low) .. ':' .. wide(high) .. ':' .. wide(free_at))
  redis.call('ZADD', r.free, 0, wide(free_at) .. ':' .. wide(low))
end

local function drop_run(r, run)
  redis.call('ZREM', r.runs, run.member)
  redis.call('ZREM', r.free, wide(run.free_at) .. ':' .. wide(run.low))
end

-- run_at is the run that the machine ID lies in. The character after ':' is ';'.
local function run_at(r, id)
  return run_of(redis.call('ZRANGE', r.runs, '[' .. wide(id) .. ';', '-', 'BYLEX', 'REV', 'LIMIT', 0, 1)[1])
end

-- set_run makes one run of low to high, and cuts those that reach beyond.
local function set_run(r, low, high, free_at)
  local first = run_at(r, low)
  local last = first
  if first.high < high then
    last = run_at(r, high)
    for _, member in ipairs(redis.call('ZRANGE', r.runs, '[' .. wide(first.high + 1), '[' .. wide(high) .. ';', 'BYLEX')) do
      drop_run(r, run_of(member))
    end
  end
  drop_run(r, first)
  if first.low < low then put_run(r, first.low, low - 1, first.free_at) end
  put_run(r, low, high, free_at)
  if last.high > high then put_run(r, high + 1, last.high, last.free_at) end
end

-- choose is the machine ID with the least (free_at, distance from the cursor),
-- and from when on it is free.
local function choose(r)
  local least = redis.call('ZRANGE', r.free, 0, 0)[1]
  local text, low = string.match(least, '^(%d+):(%d+)$')
  local next = r.cursor + 1
  if next > r.high then next = r.low end
  local at = run_at(r, next)
  if at.free_at == tonumber(text) then return next, at.free_at end
  local after = redis.call('ZRANGE', r.free, '[' .. text .. ':' .. wide(next), '[' .. text .. ';', 'BYLEX', 'LIMIT', 0, 1)[1]
  if after then low = string.match(after, ':(%d+)$') end
  return tonumber(low), tonumber(text)
end

local function inside_member(r, bit_seq, id, till)
  return wide(math.floor(id * 2 ^ bit_seq / r.size)) .. ':' .. wide(till) .. ':' .. int(bit_seq) .. ':' .. wide(id)
end

-- available is what the records say of when the machine ID is free: the
-- greatest end of those that overlap its slot, 0 if none does.
local function available(p, r, id)
  local free_at, finer = 0, false
  for _, level in ipairs(p.level_list) do
    if level >= r.bit_seq then
      free_at = math.max(free_at, slot_end(level, math.floor(id * r.size / 2 ^ level)))
    else
      finer = true
    end
  end
  if finer then
    local last = redis.call('ZRANGE', r.inside, '[' .. wide(id) .. ';', '[' .. wide(id) .. ':', 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
    if last then free_at = math.max(free_at, tonumber(string.match(last, '^%d+:(%d+)'))) end
  end
  return free_at
end

-- raise brings the rings up to date after the slot was granted or extended: its
-- end was `before` and is `till`, later than that of every record that overlaps.
local function raise(rings, bit_seq, id, before, till)
  for _, r in ipairs(rings) do
    local low, high = within(r, bit_seq, id)
    if low and r.bit_seq > bit_seq then
      if before > 0 then redis.call('ZREM', r.inside, inside_member(r, bit_seq, id, before)) end
      redis.call('ZADD', r.inside, 0, inside_member(r, bit_seq, id, till))
      set_run(r, low, low, math.max(run_at(r, low).free_at, till))
    elseif low then
      -- Every slot in the range was free a moment ago, or is this one: all are
      -- free again at the same time.
      set_run(r, low, high, till)
    end
  end
end

-- lower brings the rings up to date after the slot's end went from `before`
-- down to `till`. The machine IDs of a run share the record that its time comes
-- from, so one of them is asked for all.
local function lower(p, rings, bit_seq, id, before, till)
  for _, r in ipairs(rings) do
    local low, high = within(r, bit_seq, id)
    if low and r.bit_seq > bit_seq then
      redis.call('ZREM', r.inside, inside_member(r, bit_seq, id, before))
      redis.call('ZADD', r.inside, 0, inside_member(r, bit_seq, id, till))
    end
    while low and low <= high do
      local at = run_at(r, low)
      local to = math.min(at.high, high)
      if at.free_at == before then set_run(r, low, to, available(p, r, low)) end
      low = to + 1
    end
  end
end

-- records is all slots of the pool in the order of their start, the coarse
-- before the fine.
local function records()
  local all = {}
  for _, member in ipairs(redis.call('ZRANGE', base .. 'slots', 0, -1)) do
    local bit_seq, id = string.match(member, '^(%d+):(%d+)$')
    bit_seq, id = tonumber(bit_seq), tonumber(id)
    all[#all + 1] = {bit_seq = bit_seq, id = id, start = id * 2 ^ bit_seq, till = slot_end(bit_seq, id)}
  end
  table.sort(all, function(a, b)
    if a.start ~= b.start then return a.start < b.start end
    return a.bit_seq > b.bit_seq
  end)
  return all
end

-- build makes the runs of a ring from the records. Slots are nested or
-- disjoint, so a stack holds what overlaps the present machine ID. Runs are not
-- merged where their times are equal: lower counts on one record behind each.
local function build(r)
  redis.call('UNLINK', r.runs, r.free, r.inside)
  local open, next = {}, r.low -- all before next have their run
  local function top() return open[#open] or {high = r.high, free_at = 0} end
  local function emit(to, free_at)
    if next <= to then
      put_run(r, next, to, free_at)
      next = to + 1
    end
  end
  local function close_before(id)
    while #open > 0 and top().high < id do
      emit(top().high, top().free_at)
      open[#open] = nil
    end
  end
  for _, rec in ipairs(records()) do
    local low, high = within(r, rec.bit_seq, rec.id)
    if low then
      if rec.bit_seq < r.bit_seq then redis.call('ZADD', r.inside, 0, inside_member(r, rec.bit_seq, rec.id, rec.till)) end
      close_before(low)
      emit(low - 1, top().free_at)
      open[#open + 1] = {high = high, free_at = math.max(top().free_at, rec.till)}
    end
  end
  close_before(r.high + 1)
  emit(r.high, 0)
end
