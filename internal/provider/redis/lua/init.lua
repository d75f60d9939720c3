-- init: declares that nobody holds a lease that the store does not know.
if not p then
  new_pool(s, 0, 0, '')
elseif forgetful(p, s) or clock() < p.fence_until_ms then
  redis.call('HSET', KEYS[1], 'run_id', s.run_id, 'repl_id', s.repl_id, 'repl_in', s.repl_in,
    'fence_from_ms', '0', 'fence_until_ms', '0', 'fence_reason', '')
end
return {'ok'}
