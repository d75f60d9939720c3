package unixsock

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// lookInterval is how often the names of sockets are looked at.
const lookInterval = 2 * time.Second

// Watch notices when the name of a socket is removed, or leads to another one.
type Watch struct{ lost atomic.Pointer[error] }

// Lost is why new clients do not find a socket; nil if they find all, or nothing is known.
func (w *Watch) Lost() error {
	if err := w.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Run looks until ctx is done, which must be before the listeners are closed. It always
// returns nil.
func (w *Watch) Run(ctx context.Context, log *zap.Logger, listeners ...net.Listener) error {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		lost := firstLost(listeners)
		switch before := w.Lost(); {
		case ctx.Err() != nil:
			return nil
		case lost == nil && before != nil:
			w.lost.Store(nil)
			log.Info("the socket is back")
		case lost != nil && (before == nil || before.Error() != lost.Error()):
			w.lost.Store(&lost)
			log.Error("new clients do not find a socket", zap.Error(lost))
		}
	}
}

func firstLost(listeners []net.Listener) error {
	for _, l := range listeners {
		if socket, ok := l.(*Listener); ok && socket != nil {
			if err := socket.Lost(); err != nil {
				return err
			}
		}
	}
	return nil
}
