-- What the scripts of sequences begin with, after server.lua.
--
--   @seq                  HASH  the store's record, see life
--   @seq:<tenant>:<key>   HASH  a sequence: its options as text, the last value,
--                               when it was used, its ttl, in which life that
--                               was, and its last requests (done)
--
-- Values are decimal text: a Lua number would round them.

-- life understands the store's record, whose fields begin() has read. A life begins where the data may be other than
-- what was last written: what is recorded in an earlier life may lack the last
-- values that were handed out, and a key that is missing may have been forgotten.
-- That matters until the operator says otherwise: `trusted` is the life of which
-- all is known.
local function life(f, s, t)
  if not f[1] then
    local l = {life = int(t), trusted = '', from_ms = t, reason = 'missing'}
    redis.call('HSET', A.store, 'format', '1', 'run_id', s.run_id, 'repl_id', s.repl_id,
      'life', l.life, 'trusted', '', 'from_ms', int(t), 'reason', l.reason)
    return l
  end
  if f[1] ~= '1' then return nil, {'format', f[1]} end
  local l = {run_id = f[2], repl_id = f[3], life = f[4], trusted = f[5], from_ms = tonumber(f[6]), reason = f[7]}
  if forgetful(l, s) then
    if l.trusted == l.life then l.reason = 'changed' end -- else what was said before holds too
    l.life, l.from_ms = int(math.max(t, tonumber(l.life) + 1)), math.max(t, l.from_ms)
    redis.call('HSET', A.store, 'run_id', s.run_id, 'repl_id', s.repl_id,
      'life', l.life, 'from_ms', int(l.from_ms), 'reason', l.reason)
  elseif l.repl_id ~= s.repl_id then
    redis.call('HSET', A.store, 'repl_id', s.repl_id)
  end
  return l
end

-- knows reports whether nothing was forgotten: the operator said so of this
-- life, or of all changes, once some time has passed (failover_fence).
local function knows(l, t)
  return l.trusted == l.life
    or A.failover_fence_ms and l.reason == 'changed' and t >= l.from_ms + tonumber(A.failover_fence_ms)
end

-- begin reads what every script needs, or the answer that refuses.
local function begin()
  local f = redis.call('HMGET', A.store, 'format', 'run_id', 'repl_id', 'life', 'trusted', 'from_ms', 'reason')
  local s, refusal = f[1] and same_server(f[3])
  if not s then s, refusal = server() end
  if refusal then return nil, nil, refusal end
  local t = clock()
  local l, other = life(f, s, t)
  if other then return nil, nil, other end
  if s.replicas < tonumber(A.min_replicas) then return nil, nil, {'replicas', int(s.replicas)} end
  return l, t
end

-- expire has Redis itself remove a sequence that has expired, some time after.
local function expire(ttl)
  if ttl > 0 then redis.call('PEXPIRE', KEYS[1], int(ttl + 60000)) end
end

-- keep writes a sequence.
local function keep(k, l)
  redis.call('HSET', KEYS[1], 'options', k.options, 'used', int(k.used), 'ttl', int(k.ttl), 'life', l.life, 'done', k.done)
  expire(k.ttl)
end
