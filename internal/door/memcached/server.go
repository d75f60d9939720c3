package memcached

import (
	"bufio"
	"context"
	"net"
	"sync"

	"github.com/kazahana/kazahana/internal/daemon"
)

type server struct {
	door    *daemon.Door
	version string
	work    context.Context // of requests under way
}

// Serve answers on the listener, which it closes, until ctx is done. Then requests under
// way are answered, for as long as a drain of the daemon takes.
func Serve(ctx context.Context, l net.Listener, d *daemon.Door, version string) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	s := &server{door: d, version: version, work: work}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	entrance := d.Listener(l)
	var guests sync.WaitGroup
	for {
		nc, err := entrance.Accept()
		if err != nil {
			break
		}
		g := nc.(*daemon.Guest)
		guests.Go(func() {
			defer g.Close()
			c := &conn{server: s, guest: g}
			c.in = bufio.NewReaderSize((*patientReader)(c), maxLine)
			c.serve()
		})
	}
	d.Drain(&guests, cancel)
	d.Wait()
}
