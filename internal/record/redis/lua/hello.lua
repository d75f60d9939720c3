-- hello: what is true at one moment: the first of the commands in ARGV[1] that this user may not
-- run, '' for none; INFO, in which the server says what it is; its clock; and the store's record.
-- A command that is refused in the middle of a script would leave half of a write behind.
if not redis.acl_check_cmd then return {'', redis.call('INFO'), 0, ''} end -- before Redis 7
local key = KEYS[1] .. ':' -- which channels begin with, too
for command in string.gmatch(ARGV[1], '%S+') do
  if not redis.acl_check_cmd(command, key, '0', '0') and not redis.acl_check_cmd(command, key) then
    return {command, '', 0, ''}
  end
end
local info = redis.call('INFO', 'server', 'replication', 'memory', 'stats')
if not string.find(info, '\nrole:master', 1, true) then return redis.error_reply('READONLY this server is a replica') end
{{clock}}
return {'', info, now, redis.call('GET', KEYS[1]) or ''}
