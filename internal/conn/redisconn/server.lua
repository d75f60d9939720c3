-- What every script begins with: its arguments, and the server it runs on.
-- Scripts answer with an array whose first element says what it is; only what
-- Redis itself refuses is an error.
--
-- Times are Unix milliseconds. Numbers are whole and stay below 2^53, where a
-- Lua number is exact; tostring is not used on them, since it rounds to 14 digits.

-- Arguments come as name, value, name, value, ...
local A = {}
for i = 1, #ARGV, 2 do A[ARGV[i]] = ARGV[i + 1] end

local function int(n) return string.format('%d', n) end

local function clock()
  if A.now then return tonumber(A.now) end -- tests only
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- line finds a line of INFO's answer. The plain search first: a pattern is tried
-- at each of some thousand places, which would be most of what a script takes.
local function line(info, name)
  local _, at = string.find(info, '\n' .. name .. ':', 1, true)
  return at and string.match(info, '^[^\r\n]*', at + 1) or ''
end

-- server is what INFO says of the instance that runs this script, or the
-- answer that refuses to work on it.
local function server()
  local info = redis.pcall('INFO', 'server', 'replication', 'memory', 'stats')
  if type(info) == 'table' then
    -- Several sections at once are new in Redis 7.
    if string.find(info.err, 'syntax') then return nil, {'version', 'older than 7'} end
    return nil, info
  end
  local function field(name) return line(info, name) end
  local s = {
    version = field('redis_version'), role = field('role'), policy = field('maxmemory_policy'),
    run_id = field('run_id'), repl_id = field('master_replid'), repl_id2 = field('master_replid2'),
    repl_in = field('total_net_repl_input_bytes'),
  }
  if (tonumber(string.match(s.version, '^%d+')) or 0) < 7 then return nil, {'version', s.version} end
  if s.role ~= 'master' then
    return nil, redis.error_reply('READONLY this server is a replica')
  end
  if s.policy ~= 'noeviction' then return nil, {'policy', s.policy} end
  if s.run_id == '' or s.repl_id == '' then return nil, {'norunid'} end
  return s
end

-- acl is the answer that refuses to work with a user who may not run the
-- commands on the key: one that is refused in the middle of a script would leave
-- half of a write behind.
local function acl(commands, key)
  for command in string.gmatch(commands, '%S+') do
    if not redis.acl_check_cmd(command, key, '0', '0') and not redis.acl_check_cmd(command, key) then
      return {'acl', command}
    end
  end
end

local no_replid = string.rep('0', 40)
