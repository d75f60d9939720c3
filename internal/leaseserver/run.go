package leaseserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/operator/guard"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"go.uber.org/zap"
)

// maxHeaderBytes bounds the head of a request, which holds a token at most.
const maxHeaderBytes = 32 << 10

// phases are the time limits of each part of an exchange, against clients that send a
// byte a minute.
type phases struct {
	header, read, write, idle time.Duration // read is head and body; write begins at the head's end
	unproven                  time.Duration // idle, before any request on the connection was authenticated
	refused                   time.Duration // the rest of a body whose request was refused
	young                     time.Duration // for so long no connection of the same address takes its place
}

// patience are the limits outside of tests. idle is longer than the clients' own limit,
// so that they close unused connections first.
var patience = phases{header: 5 * time.Second, read: 15 * time.Second, write: time.Minute, idle: 2 * time.Minute, unproven: 5 * time.Second, refused: time.Second, young: time.Second}

// Listening configures Serve.
type Listening struct {
	TLS            *tls.Config                     // nil = plain HTTP
	Guard          func(http.Handler) http.Handler // optional: wraps the handler of all requests
	MemoryLimit    int64                           // bytes that the process may use; 0 = not limited
	MaxConnections int                             // at once, if the memory allows as many
	PerAddress     int                             // of them from one address; 0: no limit
	DrainDelay     time.Duration
	DrainTimeout   time.Duration
}

// Serve answers on the listener until ctx is done, then stops as the package's
// documentation describes. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener, o Listening) error {
	handler := http.Handler(s)
	if o.Guard != nil {
		handler = o.Guard(s)
	}
	limits := guard.Limits{Connections: o.connections(), PerAddress: o.perAddress(), Unproven: s.phases.unproven, Young: s.phases.young}
	connections := guard.New(limits, guard.Note(s.o.Quotas, map[guard.Reason]quota.Refusal{
		guard.Full:       {Quota: "max_connections", Limit: int64(limits.Connections)},
		guard.PerAddress: {Quota: "quota_connections", Limit: int64(limits.PerAddress)},
	}))
	server := &http.Server{
		Handler: handler, TLSConfig: o.TLS,
		ReadHeaderTimeout: s.phases.header, ReadTimeout: s.phases.read, WriteTimeout: s.phases.write, IdleTimeout: s.phases.idle,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(debugWriter{s.o.Log}, "", 0),
	}
	s.bodies.share(o.MemoryLimit)
	connections.Protect(server)
	s.maxWaiters.Store(o.waiters())
	watching, unwatch := context.WithCancel(ctx)
	var watched sync.WaitGroup
	watched.Go(func() { s.watch(watching) })
	defer watched.Wait()
	defer unwatch()
	served := make(chan error, 1)
	go func() {
		l := connections.Listener(l)
		if o.TLS != nil {
			served <- server.ServeTLS(l, "", "")
		} else {
			served <- server.Serve(l)
		}
	}()
	select {
	case err := <-served:
		return fmt.Errorf("the listener failed: %w", err)
	case <-ctx.Done():
	}
	s.stopping.Store(true)
	s.leave()
	server.SetKeepAlivesEnabled(false)
	s.o.Log.Info("stopping: requests under way are answered first", zap.Duration("drain_delay", o.DrainDelay))
	select {
	case err := <-served:
		return fmt.Errorf("the listener failed while stopping: %w", err)
	case <-s.after(o.DrainDelay):
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.DrainTimeout)
	defer cancel()
	err := server.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		s.o.Log.Warn("requests were cut off: they took longer than drain_timeout")
		err = server.Close()
	}
	<-served
	return err
}

// debugWriter logs net/http's messages about peers at debug, since any peer can provoke
// them.
type debugWriter struct{ log *zap.Logger }

// Write implements io.Writer.
func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug("connection", zap.ByteString("said", p))
	return len(p), nil
}
