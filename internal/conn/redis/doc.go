// Package redisconn is the connection to a Redis server: alone, behind Sentinel,
// over TLS or a Unix socket. It knows nothing of what is kept there.
//
// # What is promised
//
// An operation (Run) uses one connection and ends with its context, with a
// reason that says where the server is and what can be done. It is tried a
// second time where the first cannot have been carried out, or where the caller
// says that carrying it out twice does nothing more (Repeatable): connections go
// stale, and a failover leaves some that lead to a server that is the primary no
// more. What must be sent at most once says when it sends (SentOnce, Sending): up
// to then it can be tried again, and a failure is known to have changed nothing. An error made by Answer is passed on as it is.
//
// What changes anything is a Lua script, which Redis runs from beginning to end
// with nothing in between. Scripts begin with server.lua, whose functions refuse
// a server that is too old, is a replica, or may evict keys, and tell whether
// the server may have forgotten something: it is another process than the one
// that was recorded (run_id), or the same one that was a replica in between (its
// replication ID has changed). What to do about that is the caller's matter;
// failover_fence= and min_replicas= are read here because they mean the same to
// all callers.
//
// # min_replicas
//
// Confirmed asks for what was written on its own connection, so it must be
// called in the same operation as the script.
package redisconn
