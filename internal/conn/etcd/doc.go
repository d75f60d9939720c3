// Package etcdconn is the connection to an etcd cluster. It knows nothing of
// what is kept there.
//
// # What is promised
//
// A call (Client.Call) is tried at several members within its deadline, since
// one that hangs must not use up all the time, and fails with a reason that says
// where etcd is and what can be done. What it runs must change nothing when it
// is done twice: a transaction that compares revisions. What must be sent at most
// once goes through CallOnce.
//
// A member that cannot be reached fails at once instead of waiting until the
// time is up and then not knowing why. The login is this package's own: the
// client library's fails for good with servers before 3.5 once a token expired.
package etcdconn
