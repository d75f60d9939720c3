// Package etcd keeps locks in etcd, for all hosts that use it. A change is
// answered when a majority of the members has it on disk, so that nothing is
// forgotten and there is no fence.
//
// # Who decides what has expired
//
// etcd has no clock that tells the time. While a lock is held, there is a marker
// beside its record, on an etcd lease that lasts one second longer than the term,
// rounded up to whole seconds. The lock is held while its marker is there, and
// has expired once etcd has removed it: no host's clock has a say. Every change
// is a transaction that compares the revisions of record and marker.
//
// Clocks of hosts are shown all the same: AcquiredMS and ExpiresMS are by the
// clock of the host that asked. What is left of a lease (RemainingMS) is never
// more than etcd says where its holder could go by it: that is what the second is
// for, since etcd tells whole ones, rounded down.
//
// A renewal for as many seconds keeps the etcd lease alive; another term needs
// another etcd lease, which the marker moves to in the same transaction. An etcd
// lease that carries no marker, because a transaction came too late or was never
// heard of again, harms nobody and ends by itself.
//
// # Tokens
//
// A record is an ordinary key and counts the tokens of its lock. Idle ones are
// deleted by a transaction that raises the floor to their tokens, from which new
// locks count. When a record is idle is judged by a host's clock; a wrong one has
// requests be forgotten sooner, and nothing else.
//
// # Keys
//
// After the prefix, /kazahana/ by default. Values are JSON.
//
//	@lock/key/<tenant>/<key>   the lock: a lock.State, which call wrote it (w), and
//	                           the seconds of its etcd lease (x)
//	@lock/held/<tenant>/<key>  the marker: the same without receipts
//	@lock/floor                the highest token among the records deleted
package etcd
