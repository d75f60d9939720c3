// Package redisconn is the connection to a Redis server: alone, behind Sentinel, over TLS
// or a Unix socket. It knows nothing of the data there.
//
// An operation (Run) ends with a reason that says where the server is and what can be done. It
// runs in its caller's goroutine: another one would cost as much again, as the two would wait for each
// other. It is tried a second time where the first try cannot have been carried out, or where
// that would do nothing more: connections go stale, and a failover leaves some that lead to a
// server that is no longer the primary.
//
// failover_fence= and min_replicas= are read here because they mean the same to all callers.
package redisconn
