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

	"github.com/kazahana/kazahana/internal/operator/limitlistener"
	"go.uber.org/zap"
)

// maxHeaderBytes bounds the head of a request, which holds a token at most.
const maxHeaderBytes = 32 << 10

// phases are the time limits of each part of an exchange, against clients that send a
// byte a minute.
type phases struct {
	header, read, write, idle time.Duration // header is also the handshake of TLS; read is head and body; write begins at the head's end
	refused                   time.Duration // the rest of a refused request's body
}

// patience are the limits outside of tests. idle is longer than the clients' own limit,
// so that they close unused connections first. It is so short because idle connections
// keep newcomers out where all places are taken.
var patience = phases{header: 5 * time.Second, read: 15 * time.Second, write: time.Minute, idle: 12 * time.Second, refused: time.Second}

// Listening configures Serve.
type Listening struct {
	TLS            *tls.Config                     // nil = plain HTTP
	Wrap           func(http.Handler) http.Handler // optional: wraps the handler of all requests
	MemoryLimit    int64                           // bytes that the process may use; 0 = not limited
	MaxConnections int                             // at once, if the memory allows as many
	PerAddress     int                             // of them from one address; 0: three quarters
	DrainDelay     time.Duration
	DrainTimeout   time.Duration
}

// Serve answers on the listener until ctx is done, then stops as the package's
// documentation describes. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener, o Listening) error {
	handler := http.Handler(s)
	if o.Wrap != nil {
		handler = o.Wrap(s)
	}
	server := &http.Server{
		Handler: handler, TLSConfig: o.TLS,
		ReadHeaderTimeout: s.phases.header, ReadTimeout: s.phases.read, WriteTimeout: s.phases.write, IdleTimeout: s.phases.idle,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(debugWriter{s.o.Log}, "", 0),
	}
	server.Protocols = new(http.Protocols) // HTTP/2 has many requests on one connection
	server.Protocols.SetHTTP1(true)
	s.bodies.share(o.MemoryLimit)
	s.maxWaiters.Store(o.waiters())
	watching, unwatch := context.WithCancel(ctx)
	var watched sync.WaitGroup
	watched.Go(func() { s.watch(watching) })
	defer watched.Wait()
	defer unwatch()
	served := make(chan error, 1)
	go func() {
		l := limitlistener.New(l, limitlistener.Limits{Connections: o.connections(), PerAddress: o.perAddress()}, s.refused)
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

// refused notes that the listener has closed a connection.
func (s *Server) refused(r limitlistener.Refusal) {
	limit := "max_connections"
	if r.Address.IsValid() {
		limit = "max_connections_per_address"
	}
	s.o.Refusals.Refuse(limit, r.String())
}

// debugWriter logs net/http's messages about peers at debug, since any peer can provoke
// them.
type debugWriter struct{ log *zap.Logger }

// Write implements io.Writer.
func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug("connection", zap.ByteString("said", p))
	return len(p), nil
}
