//go:build linux

package abuse

import (
	"fmt"
	"net"
)

// onWaiting are the attacks with requests that wait, and with what a connection holds.
var onWaiting = []attack{
	{name: "batches that wait", users: 4, begin: func(a *attacker) { a.keep(16, a.socket, a.pour(batches)) }},
	{name: "lock waiters on one connection", users: 1, begin: func(a *attacker) { a.keep(1, a.socket, a.wait(8192)) }},
	{name: "lock waiters of many users", users: 4, begin: func(a *attacker) { a.keep(64, a.socket, a.wait(256)) }},
	{name: "waiters for many locks", users: 2, begin: func(a *attacker) { a.keep(16, a.socket, a.waitForMany) }},
	{name: "holds", users: 1, begin: func(a *attacker) { a.keep(8, a.socket, a.holds) }},
	{name: "watches", users: 1, begin: func(a *attacker) { a.keep(2000, a.socket, a.watches) }},
	{name: "renewals", users: 2, begin: func(a *attacker) { a.keep(32, a.socket, a.renewals) }},
	{name: "Lock.List never read", users: 1, begin: (*attacker).listNeverRead},
	{name: "Lock.List never read, many users", users: 4, begin: (*attacker).listNeverRead},
	{name: "Placement.Snapshot never read", users: 1, serve: []string{"--placement-authority", "here.example:1"}, begin: (*attacker).snapshotsNeverRead},
	{name: "Placement.Watch never read", users: 1, serve: []string{"--placement-authority", "here.example:1"}, begin: (*attacker).eventsNeverRead},
}

const (
	day  = 86_400_000 // ms: the longest term, and the longest wait for a lock
	hour = 3_600_000  // ms: the longest wait for IDs
)

// batches waits for the most IDs that a request may ask for.
func batches(n int) []byte {
	return pack(n+1, "NextIDs", 65_536, options{"timeout_ms": hour})
}

// key is one that no other attacker has.
func (a *attacker) key(n int) string { return fmt.Sprintf("attacker-%d-%d", a.Number, n) }

// first answers once with the first request, then with the requests of rest.
func first(request []byte, most int, rest func(n int) []byte) func(n int) []byte {
	return func(n int) []byte {
		switch {
		case n == 0:
			return request
		case n > most:
			return nil
		}
		return rest(n)
	}
}

// wait holds a lock, and waits for it so many times.
func (a *attacker) wait(n int) func(net.Conn) {
	take := pack(1, "Lock.Acquire", "wanted", options{"ttl_ms": day})
	return a.pour(first(take, n, func(n int) []byte {
		return pack(n+1, "Lock.Acquire", "wanted", options{"ttl_ms": day, "wait_ms": day, "request_id": fmt.Sprint(n)})
	}))
}

// waitForMany waits for as many locks as it holds.
func (a *attacker) waitForMany(conn net.Conn) {
	a.pour(func(n int) []byte {
		if n >= 1000 {
			return nil
		}
		return pack(n+1, "Lock.Acquire", a.key(n/2), options{"ttl_ms": day, "wait_ms": day})
	})(conn)
}

// holds holds locks by its connection.
func (a *attacker) holds(conn net.Conn) {
	a.pour(func(n int) []byte {
		if n >= 12_000 {
			return nil
		}
		return pack(n+1, "Lock.Acquire", a.key(n), options{"ttl_ms": 10_000, "hold": "connection"})
	})(conn)
}

// watches holds a lock by its connection, and watches it again and again.
func (a *attacker) watches(conn net.Conn) {
	key := a.key(int(a.now.dialed.Load()))
	a.pour(first(pack(1, "Lock.Acquire", key, options{"ttl_ms": day, "hold": "connection"}), 100, func(n int) []byte {
		return pack(n+1, "Lock.Watch", key)
	}))(conn)
}

// renewals renews a lock as fast as it can.
func (a *attacker) renewals(conn net.Conn) {
	key := a.key(int(a.now.dialed.Load()))
	a.pour(first(pack(1, "Lock.Acquire", key, options{"ttl_ms": day}), 1<<30, func(n int) []byte {
		return pack(n+1, "Lock.Renew", key, options{"ttl_ms": day})
	}))(conn)
}

// listNeverRead makes locks with long names, asks for all of them, and reads nothing.
func (a *attacker) listNeverRead() {
	a.fill(1000)
	a.keep(1500, a.socket, a.unread("Lock.List"))
}
