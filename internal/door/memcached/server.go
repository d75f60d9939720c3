package memcached

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
)

type server struct {
	door    *daemon.Door
	version string
	started time.Time
	work    context.Context // of requests under way

	draining, cut             atomic.Bool  // a drain has begun, and its time is over
	total, gets, hits, misses atomic.Int64 // for stats

	mu    sync.Mutex
	conns map[*conn]struct{} // guarded by mu
	wg    sync.WaitGroup     // one for each of them
}

// Serve answers on the listener, which it closes, until ctx is done. Then requests under
// way are answered, for as long as a drain of the daemon takes.
func Serve(ctx context.Context, l net.Listener, d *daemon.Door, version string) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	s := &server{door: d, version: version, started: time.Now(), work: work, conns: map[*conn]struct{}{}}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	entrance := d.Listener(l)
	for {
		nc, err := entrance.Accept()
		if err != nil {
			break
		}
		s.begin(nc.(*daemon.Guest))
	}
	s.drain(cancel)
	d.Wait()
}

// begin serves a connection in a goroutine.
func (s *server) begin(g *daemon.Guest) {
	s.total.Add(1)
	c := &conn{server: s, guest: g, buf: make([]byte, 0, smallBuffer)}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	s.wg.Go(func() {
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = g.Close()
	})
}

// drain ends all connections.
func (s *server) drain(cancel context.CancelCauseFunc) {
	s.draining.Store(true)
	s.each(func(c *conn) { c.hurry() })
	finished := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(finished)
	}()
	_, timeout := s.door.Drain()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-finished:
		return
	case <-timer.C:
	}
	s.cut.Store(true)
	cancel(s.door.Stopping())
	s.each(func(c *conn) { _ = c.guest.SetDeadline(time.Now()) })
	<-finished
}

// each calls do for every connection.
func (s *server) each(do func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		do(c)
	}
}

// late is how long a peer has when its connection ends.
func (s *server) late() time.Time {
	late, _ := s.door.Drain()
	return time.Now().Add(late)
}

// stats appends what katsubushi's STATS has.
func (s *server) stats(out []byte) []byte {
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	now := time.Now()
	for _, one := range []struct {
		name  string
		value any
	}{
		{"pid", os.Getpid()}, {"uptime", int64(now.Sub(s.started).Seconds())}, {"time", now.Unix()}, {"version", s.version},
		{"curr_connections", open}, {"total_connections", s.total.Load()},
		{"cmd_get", s.gets.Load()}, {"get_hits", s.hits.Load()}, {"get_misses", s.misses.Load()},
	} {
		out = fmt.Appendf(out, "STAT %s %v\r\n", one.name, one.value)
	}
	return append(out, end...)
}
