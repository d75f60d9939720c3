-- commit: carries writes out if everything is as it was seen, and returns the moment;
-- else, or without writes, it returns the present. It is for one process of the server,
-- {{run_id}}: another one does not know it.
--
--   KEYS     the records
--   ARGV[1]  stamp, before, from, floor, raised, ranges, mode; then a byte for each write
--   ARGV     the tag of each record; from, to, limit and what was seen of each range; a
--            record for each write that is none a deletion, and when it vanishes; then
--            commands, each after the number of its words
--
-- Lua hashes every byte that it is given, so records and the state are read in full only
-- where that is needed.
local head = ARGV[1]
local state = redis.call('GETRANGE', {{state}}, 0, 21)
if string.sub(state, 1, 8) ~= string.sub(head, 1, 8) then return {'life'} end
local _, before, from, floor, raised, ranges, mode = struct.unpack('>c8I6I6c8c8BB', head)
if mode ~= {{frees}} then
  local info = redis.call('INFO', 'replication')
  if not string.find(info, '\nmaster_replid:{{repl_id}}', 1, true) then return {'life'} end
  local replicas = {{min_replicas}} > 0 and tonumber(string.match(info, '\nconnected_slaves:(%d+)'))
  if replicas and mode ~= {{looks}} and replicas < {{min_replicas}} then return {'replicas', replicas} end
end
{{clock}}
local last = struct.unpack('>I6', state, 9)
if last > now then now = last end

local none = '\255\255\255\255\255\255\255\255'
local same = mode ~= {{looks}} and now < before and now >= from and (floor == none or string.sub(state, 15) == floor)
for i, key in ipairs(KEYS) do
  local tag = ARGV[i + 1]
  -- A tag of 40 bytes is the beginning of a record, a shorter one all of it.
  if redis.call('GETRANGE', key, 0, math.min(#tag, 39)) ~= tag then same = false end
end
local at, spans = #KEYS + 2, {}
for i = 1, ranges do
  spans[i] = redis.call('ZRANGE', {{index}}, ARGV[at], ARGV[at + 1], 'BYLEX', 'LIMIT', 0, ARGV[at + 2])
  if table.concat(spans[i], '\0\0') ~= ARGV[at + 3] then same = false end
  at = at + 4
end
if not same and mode == {{frees}} then return {'life'} end -- the present is seen with a look at the server
if not same then
  local seen = {}
  for i, key in ipairs(KEYS) do seen[i] = redis.call('GET', key) or '' end
  return {'present', now, redis.call('GET', {{state}}), seen, spans}
end

local moment = struct.pack('>I6', now)
for i = 39, #head do
  local code = string.byte(head, i)
  local key = KEYS[code % 16 + 1]
  if code >= 128 then
    redis.call('DEL', key)
  else
    local record = ARGV[at]
    at = at + 1
    if code >= 64 then record = moment .. record end
    if code % 64 >= 32 then
      redis.call('SET', key, record, 'PXAT', now + ARGV[at])
      at = at + 1
    else
      redis.call('SET', key, record)
    end
  end
end
while ARGV[at] do
  local words = tonumber(ARGV[at])
  if ARGV[at + 1] == 'DUE' then
    redis.call('ZADD', {{due}}, now + ARGV[at + 2], ARGV[at + 3])
  else
    redis.call(unpack(ARGV, at + 1, at + words))
  end
  at = at + words + 1
end
if raised ~= none or now - last >= 1000 then
  if raised == none then raised = string.sub(state, 15) end
  redis.call('SET', {{state}}, string.sub(state, 1, 8) .. moment .. raised .. string.sub(redis.call('GET', {{state}}), 23))
end
return now
