// Package fences watches the stores of a process that may have forgotten grants, and hold back
// new ones until these have ended.
package fences

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// interval is how often Run checks whether a file is held back.
	interval = time.Second
	// lookTimeout bounds one check of a file that is held back.
	lookTimeout = 3 * time.Second
	// movedMS is how far an end moves before it is logged again. While etcd measures a fence for
	// longer than the host's clock says, each look finds an end that is a second later.
	movedMS = 60_000
)

// Watcher has the stores of the process. Each may be held back because it may have forgotten
// grants.
type Watcher struct {
	files []*file
	nowMS func() int64
	log   *zap.Logger
}

// file is a store that may be held back. On a server the provider and the store may be at one
// place, and each has a fence.
type file struct {
	url    string
	known  func() *backend.Fence           // without I/O; nil: it is not held back, or not open yet
	look   func(ctx context.Context) error // refreshes known; nil where acquires that are refused do
	logged *backend.Fence                  // until its end
}

// New finds the stores of the provider and of the store of locks and sequences, which may be nil. A
// lease server watches its own.
func New(p provider.Provider, k *issuer.KeyedStores, nowMS func() int64, log *zap.Logger) *Watcher {
	w := &Watcher{nowMS: nowMS, log: log}
	info := p.Info()
	if !strings.HasPrefix(info.Name, "http") && (info.Scope == provider.ScopeHost || info.Scope == provider.ScopeShared) {
		leases := &file{url: info.URL, look: p.Ready, known: func() *backend.Fence {
			if fenced := p.Fenced(); fenced != nil {
				return &backend.Fence{UntilMS: fenced.UntilMS, Reason: fenced.Reason}
			}
			return nil
		}}
		if info.Name == "kubernetes" { // thousands of daemons ask one API server
			leases.look = nil
		}
		w.files = append(w.files, leases)
	}
	if k != nil && !k.Store.Remote() {
		w.files = append(w.files, &file{url: k.Store.URL, known: k.Store.Fenced, look: k.Store.Look})
	}
	return w
}

// All returns every file, held back or not, for the metric. Of two fences at one place it
// returns the later one.
func (w *Watcher) All() (all []metrics.Fence) {
	for _, file := range w.files {
		at := slices.IndexFunc(all, func(one metrics.Fence) bool { return one.File == file.url })
		if at < 0 {
			at = len(all)
			all = append(all, metrics.Fence{File: file.url})
		}
		if known := file.known(); known != nil && w.nowMS() < known.UntilMS {
			all[at].UntilMS = max(all[at].UntilMS, known.UntilMS)
		}
	}
	return all
}

// Now returns the files that are held back, for status.
func (w *Watcher) Now() []metrics.Fence {
	held := []metrics.Fence{}
	for _, file := range w.files {
		if known := file.known(); known != nil {
			held = append(held, metrics.Fence{File: file.url, UntilMS: known.UntilMS, Reason: known.Reason, Sequences: known.Sequences})
		}
	}
	return held
}

// Run logs the beginning and the end of each fence, until ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	if len(w.files) == 0 {
		return nil
	}
	every := time.NewTicker(interval)
	defer every.Stop()
	for {
		w.step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
	}
}

func (w *Watcher) step(ctx context.Context) {
	for _, file := range w.files {
		if file.logged != nil && file.look != nil {
			// An operator may have ended the fence from another process. A disk that
			// does not answer is reported elsewhere.
			looking, cancel := context.WithTimeout(ctx, lookTimeout)
			_ = file.look(looking)
			cancel()
		}
		known := file.known()
		if known == nil || w.nowMS() >= known.UntilMS {
			if file.logged != nil {
				file.logged = nil
				w.log.Info("grants begin again", zap.String("file", file.url), zap.Bool("sequences", known == nil || !known.Sequences))
			}
			continue
		}
		if file.logged == nil || known.UntilMS-file.logged.UntilMS > movedMS || file.logged.UntilMS-known.UntilMS > movedMS {
			file.logged = known
			w.log.Error("grants are held back", zap.String("file", file.url),
				zap.String("until", snowflake.FormatMS(known.UntilMS)), zap.String("reason", known.Reason))
		}
	}
}
