package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
)

// pollEvery is how often watchers get a token without a notification: one can be lost
// between a commit and its notification.
const pollEvery = 3 * time.Second

// errClosed: the store was closed.
var errClosed = errors.New("the store is closed")

// watchers share one session, which listens as long as there are any.
type watchers struct {
	store *postgresconn.Store

	mu     sync.Mutex
	closed bool
	shared *listener // nil: there is none
	tasks  sync.WaitGroup
}

// listener is the session, and the watches that it tells.
type listener struct {
	ready  chan struct{} // closed when err is final
	err    error
	end    context.CancelFunc
	tokens map[chan struct{}]watch // guarded by watchers.mu; nil: it is blind
}

// watch is one of the watches that a listener tells.
type watch struct {
	prefix string
	stop   func() bool // ends what its context would do
}

func newWatchers(store *postgresconn.Store) *watchers { return &watchers{store: store} }

// add returns a channel of tokens for keys with the prefix.
func (w *watchers) add(ctx context.Context, prefix string) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tokens := make(chan struct{}, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, errClosed
	}
	l := w.shared
	if l == nil {
		lifetime, end := context.WithCancel(context.Background())
		l = &listener{ready: make(chan struct{}), end: end, tokens: map[chan struct{}]watch{}}
		w.shared = l
		w.tasks.Go(func() { w.listen(lifetime, l) })
	}
	l.tokens[tokens] = watch{prefix, context.AfterFunc(ctx, func() { w.remove(l, tokens) })}
	w.mu.Unlock()
	select {
	case <-l.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l.err != nil {
		return nil, l.err
	}
	return tokens, nil
}

// remove ends a watch, and the session after the last one.
func (w *watchers) remove(l *listener, tokens chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := l.tokens[tokens]; !ok {
		return
	}
	delete(l.tokens, tokens)
	close(tokens)
	if len(l.tokens) == 0 {
		w.drop(l)
	}
}

// drop ends a session, with the lock. Its watchers are blind.
func (w *watchers) drop(l *listener) {
	for tokens, one := range l.tokens {
		one.stop() // a context that lasts would keep the listener in memory
		close(tokens)
	}
	l.tokens = nil
	l.end()
	if w.shared == l {
		w.shared = nil
	}
}

func (w *watchers) close() {
	w.mu.Lock()
	w.closed = true
	if w.shared != nil {
		w.drop(w.shared)
	}
	w.mu.Unlock()
	w.tasks.Wait()
}

// startTime is how long the server may take to begin to listen.
const startTime = 5 * time.Second

// listen has a session listen until it fails or is not needed any more.
func (w *watchers) listen(ctx context.Context, l *listener) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.drop(l)
	}()
	starting, started := context.WithTimeout(ctx, startTime)
	conn, release, err := w.store.Client().Session(starting)
	if err == nil {
		defer release()
		_, err = conn.Exec(starting, "LISTEN "+pgx.Identifier{w.store.Channel()}.Sanitize())
	}
	started()
	l.err = err
	close(l.ready)
	for err == nil {
		polling, cancel := context.WithTimeout(ctx, pollEvery)
		said, waitErr := conn.WaitForNotification(polling)
		cancel()
		if waitErr != nil && (ctx.Err() != nil || polling.Err() == nil || conn.IsClosed()) {
			return
		}
		w.tell(l, func(prefix string) bool { return waitErr != nil || strings.HasPrefix(said.Payload, prefix) })
	}
}

// tell gives a token to the watchers with a fitting prefix.
func (w *watchers) tell(l *listener, fits func(prefix string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for tokens, one := range l.tokens {
		if fits(one.prefix) {
			select {
			case tokens <- struct{}{}:
			default:
			}
		}
	}
}
