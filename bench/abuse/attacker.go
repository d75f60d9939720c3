//go:build linux

package abuse

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/bench/process"
)

// Part is the sub-mode of this program that is an attacker.
const Part = "attack"

// firstUser is the user of the first attacker, where this process may choose.
const firstUser = 64001

// order is what an attacker is told.
type order struct {
	Attack string
	Number int // of the attacker, from 0
	Target places
	Lowest bool // its priority is to be the lowest
}

// load is what attackers have put on a server.
type load struct {
	Connections int64 // open at once
	Dialed      int64
	Sent        int64  // bytes
	Asked       int64  // requests
	Refused     int64  // connections, and requests of honest clients
	Idle        int64  // attackers that did nothing
	Why         string // the first refusal of a request of an honest client
}

// attacker is a process that attacks until it is killed.
type attacker struct {
	order
	now struct{ open, dialed, sent, asked, refused, working atomic.Int64 }
	why atomic.Value // load.Why
}

// RunPart is the whole process of an attacker.
func RunPart(args []string) error {
	a := &attacker{}
	if err := json.Unmarshal([]byte(args[0]), &a.order); err != nil {
		return err
	}
	if a.Lowest {
		const lowest = 19
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, lowest)
	}
	chosen, _ := find(a.Attack)
	go chosen.begin(a)
	for report := json.NewEncoder(os.Stdout); ; time.Sleep(lookEvery) {
		l := load{
			Connections: a.now.open.Load(), Dialed: a.now.dialed.Load(), Sent: a.now.sent.Load(), Asked: a.now.asked.Load(), Refused: a.now.refused.Load(),
		}
		l.Why, _ = a.why.Load().(string)
		if err := report.Encode(l); err != nil {
			return err
		}
	}
}

// attackers are those of one attack.
type attackers struct {
	services []*process.Service
	logs     []string
}

// send starts the attackers.
func (f *field) send(a attack, t *target) (all *attackers, err error) {
	all = &attackers{}
	for n := range a.users {
		text, err := json.Marshal(order{Attack: a.name, Number: n, Target: t.places, Lowest: !f.apart()})
		if err != nil {
			return all, err
		}
		launch := f.beside
		if f.users {
			id := uint32(firstUser + n)
			launch.As = &syscall.Credential{Uid: id, Gid: id}
		}
		log := filepath.Join(filepath.Dir(t.state), fmt.Sprintf("attacker%d", n))
		s, err := launch.Launch(log, launch.Self, Part, string(text))
		if err != nil {
			return all, err
		}
		all.services, all.logs = append(all.services, s), append(all.logs, log)
	}
	return all, nil
}

// stop ends the attackers, and returns what they have put on the server together.
func (all *attackers) stop() (sum load) {
	for _, s := range all.services {
		s.Stop()
	}
	return all.load()
}

// load is what the attackers have put on the server together until now.
func (all *attackers) load() (sum load) {
	for _, path := range all.logs {
		text, err := os.ReadFile(path)
		if err != nil {
			sum.Idle++
			continue
		}
		var last load
		most := int64(0)
		for line := range bytes.Lines(text) {
			var l load
			if json.Unmarshal(line, &l) == nil { // the last one may be cut
				last, most = l, max(most, l.Connections)
			}
		}
		if last.Dialed+last.Sent+last.Asked == 0 {
			sum.Idle++
		}
		sum.Connections += most
		sum.Dialed += last.Dialed
		sum.Sent += last.Sent
		sum.Asked += last.Asked
		sum.Refused += last.Refused
		sum.Why = cmp.Or(sum.Why, last.Why)
	}
	return sum
}

// Pauses before a connection that has ended is made again.
const (
	shortPause = 20 * time.Millisecond
	longPause  = time.Second
)

// dialers is how many connections one attacker makes at the same time.
const dialers = 32

// keep keeps so many connections, for ever. do ends when the connection does.
func (a *attacker) keep(n int, dial func() (net.Conn, error), do func(net.Conn)) {
	places := make(chan struct{}, dialers)
	for range n {
		places <- struct{}{}
		<-places
		go func() {
			for pause := shortPause; ; time.Sleep(pause + rand.N(pause)) {
				places <- struct{}{}
				conn, err := dial()
				<-places
				if err != nil {
					a.now.refused.Add(1)
					pause = min(2*pause, longPause)
					continue
				}
				a.now.dialed.Add(1)
				a.now.open.Add(1)
				do(&counted{conn, a})
				_ = conn.Close()
				a.now.open.Add(-1)
				pause = shortPause
			}
		}()
	}
}

// counted counts what is written.
type counted struct {
	net.Conn
	of *attacker
}

// Write writes in parts, so that what a server has taken counts while the rest is held up.
func (c *counted) Write(b []byte) (n int, err error) {
	const part = 64 << 10
	for err == nil && n < len(b) {
		var done int
		done, err = c.Conn.Write(b[n:min(n+part, len(b))])
		n += done
		c.of.now.sent.Add(int64(done))
	}
	return n, err
}

// socket dials the daemon.
func (a *attacker) socket() (net.Conn, error) { return net.Dial("unix", a.Target.Socket) }

// admin dials the admin listener from the attacker's own address.
func (a *attacker) admin() (net.Conn, error) { return a.tcp(a.Target.Admin) }

// server dials the lease server, without TLS.
func (a *attacker) server() (net.Conn, error) { return a.tcp(a.Target.Server) }

// secure dials the lease server with TLS.
func (a *attacker) secure() (net.Conn, error) {
	conn, err := a.server()
	if err != nil {
		return nil, err
	}
	over := tls.Client(conn, unchecked())
	if err := over.Handshake(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return over, nil
}

func (a *attacker) tcp(address string) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+a.Number))}
	return (&net.Dialer{LocalAddr: from, Timeout: startLimit}).Dial("tcp", address)
}

// untilEnd reads until the connection ends.
func untilEnd(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// onlyThis sends the bytes and no more.
func onlyThis(conn net.Conn, b []byte) {
	if _, err := conn.Write(b); err == nil {
		untilEnd(conn)
	}
}

// pack is a request.
func pack(number int, method string, params ...any) []byte {
	if params == nil {
		params = []any{}
	}
	b, err := msgpack.Marshal([]any{0, uint32(number), method, params})
	if err != nil {
		panic(err) // every value in it can be encoded
	}
	return b
}

type options = map[string]any

// pour writes requests as fast as they are taken, and discards the answers.
func (a *attacker) pour(next func(n int) []byte) func(net.Conn) {
	return func(conn net.Conn) {
		var both sync.WaitGroup
		both.Go(func() { untilEnd(conn); _ = conn.Close() })
		a.ask(conn, next)
		both.Wait()
	}
}

// ask writes requests until that fails, and reads nothing. A request of no bytes is the
// end.
func (a *attacker) ask(conn net.Conn, next func(n int) []byte) {
	for n := 0; ; n++ {
		b := next(n)
		if len(b) == 0 {
			return
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
		a.now.asked.Add(1)
	}
}
