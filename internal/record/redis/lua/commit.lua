-- commit: carries writes out if everything is as it was seen, and returns the moment;
-- else, or without writes, it returns the present. It is for one process of the server,
-- {{run_id}}: another one does not know it.
--
--   KEYS     the records
--   ARGV[1]  stamp, mode, bounded; where bounded is 1, before, from, floor, raised;
--            then a byte for each write
--   ARGV     the tag of each record; a record for each write that is no deletion, and when
--            it vanishes; then commands, each after the number of its words
--
-- Lua hashes every byte that it is given, so records and the state are read in full only
-- where that is needed. Numbers that a command is given are texts where they can be: each
-- number is formatted as one with a fraction may be, which takes longer than most commands.
local call, head = redis.call, ARGV[1]
local stamp, mode, bounded = struct.unpack('>c8BB', head)
local state = call('GETRANGE', {{state}}, '0', '21')
if #state < 22 then return {'life'} end
local known, last, now_floor = struct.unpack('>c8I6c8', state)
if known ~= stamp then return {'life'} end
if mode ~= {{frees}} then
  local info = call('INFO', 'replication')
  if not string.find(info, '\nmaster_replid:{{repl_id}}', 1, true) then return {'life'} end
  if {{min_replicas}} > 0 and mode ~= {{looks}} then
    local replicas = tonumber(string.match(info, '\nconnected_slaves:(%d+)'))
    if replicas < {{min_replicas}} then return {'replicas', replicas} end
  end
end
{{clock}}
{{steady}}

local same, codes, none, raised = mode ~= {{looks}}, 11, '\255\255\255\255\255\255\255\255', nil
if bounded == 1 then
  local before, from, floor
  before, from, floor, raised, codes = struct.unpack('>I6I6c8c8', head, codes)
  if raised == none then raised = nil end
  same = same and now < before and now >= from and (floor == none or now_floor == floor)
end
for i = 1, #KEYS do
  -- A tag of 40 bytes is the beginning of a record, a shorter one all of it.
  if call('GETRANGE', KEYS[i], '0', '39') ~= ARGV[i + 1] then same = false end
end
if not same and mode == {{frees}} then return {'life'} end -- the present is seen with a look at the server
if not same then
  local seen = {}
  for i, key in ipairs(KEYS) do seen[i] = call('GET', key) or '' end
  return {'present', now, call('GET', {{state}}), seen}
end

local at = #KEYS + 2
for i = codes, #head do
  local code = string.byte(head, i)
  local key = KEYS[code % 32 + 1]
  if code >= 128 then
    call('DEL', key)
  else
    local record = ARGV[at]
    at = at + 1
    if code >= 64 then record = struct.pack('>I6', now) .. record end
    if code % 64 >= 32 then
      call('SET', key, record, 'PXAT', now + ARGV[at])
      at = at + 1
    else
      call('SET', key, record)
    end
  end
end
while ARGV[at] do
  local words = tonumber(ARGV[at])
  if ARGV[at + 1] == 'DUE' then
    call('ZADD', {{due}}, now + ARGV[at + 2], ARGV[at + 3])
  else
    call(unpack(ARGV, at + 1, at + words))
  end
  at = at + words + 1
end
if raised or now - last >= 1000 then
  call('SET', {{state}}, stamp .. struct.pack('>I6', now > last and now or last) .. (raised or now_floor) .. string.sub(call('GET', {{state}}), 23))
end
return now
