//go:build linux

package abuse

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
)

// onDisk are the attacks that fill the state directory.
var onDisk = []attack{
	{name: "keys of sequences", users: 1, begin: func(a *attacker) { a.keep(32, a.socket, a.sequenceKeys) }},
	{name: "keys of sequences of many users", users: 8, begin: func(a *attacker) { a.keep(8, a.socket, a.sequenceKeys) }},
	{name: "locks of a day", users: 1, begin: func(a *attacker) { a.keep(32, a.socket, a.lockKeys) }},
	{name: "locks of a day of many users", users: 8, begin: func(a *attacker) { a.keep(8, a.socket, a.lockKeys) }},
	{name: "snapshots of placement", users: 1, serve: []string{"--placement-authority", "here.example:1"}, begin: (*attacker).placementSnapshots},
}

// longKey is of the greatest length.
func (a *attacker) longKey(n int) string {
	key := fmt.Sprintf("%s-%d-%d", a.key(n), time.Now().UnixNano(), n)
	return key + strings.Repeat("x", 256-len(key))
}

func (a *attacker) sequenceKeys(conn net.Conn) {
	a.pour(func(n int) []byte { return pack(n, "Sequence.Next", a.longKey(n)) })(conn)
}

func (a *attacker) lockKeys(conn net.Conn) {
	a.pour(func(n int) []byte { return pack(n, "Lock.Acquire", a.longKey(n), options{"ttl_ms": day}) })(conn)
}

// fill acquires so many locks.
func (a *attacker) fill(n int) {
	conn, err := a.socket()
	if err != nil {
		return
	}
	client := wire.NewClient(conn)
	defer client.Close()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_ = client.Call(context.Background(), "Lock.Acquire", nil, a.longKey(i), options{"ttl_ms": day})
		})
	}
	all.Wait()
}
