-- list: the heads of a page of records, and the time that they are of.
local keys = redis.call('ZRANGE', KEYS[2], ARGV[1], ARGV[2], 'BYLEX', 'LIMIT', 0, ARGV[3])
local heads = {}
for i, key in ipairs(keys) do heads[i] = redis.call('GETRANGE', ARGV[4] .. key, 0, ARGV[5]) end
{{clock}}
local last = struct.unpack('>I6', redis.call('GET', KEYS[1]) or '\0\0\0\0\0\0\0\0\0\0\0\0\0\0', 9)
{{steady}}
return {now, keys, heads}
