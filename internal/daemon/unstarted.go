package daemon

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// unstartedTime is how long a daemon that cannot start answers clients. Each
	// connection to the service manager's socket would start it again at once, and the
	// unit allows 30 starts in 60 s: with this pause, clients use up at most 20.
	unstartedTime = 3 * time.Second
	// unstartedLook is how long it looks for the first client where no restart follows.
	unstartedLook = 100 * time.Millisecond
	// unstartedPatience is how long a client may take for its request.
	unstartedPatience = time.Second
	// unstartedClients is how many it serves at the same time.
	unstartedClients = 64
)

// AnswerUnstarted answers the clients that wait at the service manager's socket in place of a
// daemon that cannot start. If restarts, the service manager itself tries again, a second later:
// then it pauses without clients too, so that the unit is tried until the error has passed.
func AnswerUnstarted(ctx context.Context, l *unixsock.Listener, restarts bool, refusal *wire.Error) {
	defer context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })()
	var serving sync.WaitGroup
	defer serving.Wait()
	free := make(chan struct{}, unstartedClients)
	look, end := unstartedLook, time.Now().Add(unstartedTime)
	if restarts {
		look = unstartedTime
	}
	_ = l.SetDeadline(time.Now().Add(look))
	for ctx.Err() == nil {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		_ = l.SetDeadline(end)
		free <- struct{}{}
		serving.Go(func() {
			defer func() { <-free }()
			defer nc.Close()
			refuseFirst(nc, refusal)
		})
	}
}

// refuseFirst answers the first request of a connection.
func refuseFirst(nc net.Conn, refusal *wire.Error) {
	_ = nc.SetDeadline(time.Now().Add(unstartedPatience))
	c := wire.NewServerConn(nc, nc)
	var req wire.Request
	for c.Read(&req) == nil {
		if req.Type == wire.TypeRequest {
			c.ReplyError(req.ID, refusal)
			_ = c.Flush()
			return
		}
	}
}
