-- hello: whether this server, this user and the pool can be used at all.
return {'ok'}
