-- restate: replaces the store's record, if it and the server are what was seen.
local info = redis.call('INFO', 'server', 'replication')
if not string.find(info, '\nrun_id:' .. ARGV[1], 1, true) or not string.find(info, '\nmaster_replid:' .. ARGV[2], 1, true) then return 0 end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[1], ARGV[4])
return 1
