// Package redisconn is the connection to a Redis server: alone, behind Sentinel, over TLS
// or a Unix socket. It knows nothing of the data there.
//
// An operation (Run) ends with its context, with a reason that says where the server is
// and what can be done; one in its caller's goroutine (RunHere) may end later where it is cancelled
// before its deadline. It is tried a second time where the first try cannot have been
// carried out, or where that would do nothing more: connections go stale, and a failover
// leaves some that lead to a server that is no longer the primary.
//
// What changes anything is a Lua script. Scripts begin with server.lua. Its functions refuse a
// server that is too old, is a replica, or may evict keys, and tell which process and history of
// data it is. How to react to a change of these is the caller's matter; failover_fence= and
// min_replicas= are read here because they mean the same to all callers.
package redisconn
