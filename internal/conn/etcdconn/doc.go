// Package etcdconn is the connection to an etcd cluster. It knows nothing about the
// stored data.
//
// # Contract
//
// Client.Call tries a call at several members within its deadline, since a hanging member
// must not use up all the time. Its error says where etcd is and what to do. The call must
// be idempotent, such as a transaction that compares versions.
//
// A call to a member that cannot be reached fails at once, with the reason. The login is
// this package's own: with servers before 3.5, the client library's login fails for good
// once a token has expired.
package etcdconn
