package main

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// fenceInterval is how often watch checks whether a file is held back.
	fenceInterval = time.Second
	// fenceLook bounds one check of a file that is held back.
	fenceLook = 3 * time.Second
)

// fences are the SQLite files, PostgreSQL stores and Kubernetes pools of the process. Each may
// be held back because it may have forgotten grants.
type fences struct {
	files []*fencedFile
	nowMS func() int64
	log   *zap.Logger
}

// fencedFile is a file that may be held back. On PostgreSQL the provider and the store may
// be at one place, and each has a fence.
type fencedFile struct {
	url    string
	known  func() *metrics.Fence           // without I/O; nil: it is not held back, or not open yet
	look   func(ctx context.Context) error // refreshes known; nil where acquires that are refused do
	logged *metrics.Fence                  // until its end
}

// newFences finds those of the provider and of the store, which may be nil.
func newFences(p provider.Provider, store *backend.Store, nowMS func() int64, log *zap.Logger) *fences {
	f := &fences{nowMS: nowMS, log: log}
	if name := p.Info().Name; name == "sqlite" || name == "postgres" || name == "kubernetes" {
		url := p.Info().URL
		file := &fencedFile{
			url: url,
			known: func() *metrics.Fence {
				if fenced := p.Fenced(); fenced != nil {
					return &metrics.Fence{File: url, UntilMS: fenced.UntilMS, Reason: fenced.Reason}
				}
				return nil
			},
			look: p.Look,
		}
		if name == "kubernetes" { // thousands of daemons ask one API server
			file.look = nil
		}
		f.files = append(f.files, file)
	}
	if store != nil && store.TellsFence() {
		f.files = append(f.files, &fencedFile{
			url: store.URL,
			known: func() *metrics.Fence {
				if fenced := store.Fenced(); fenced != nil {
					return &metrics.Fence{File: store.URL, UntilMS: fenced.UntilMS, Reason: fenced.Reason, Sequences: fenced.Sequences}
				}
				return nil
			},
			look: store.Look,
		})
	}
	return f
}

// all returns every file, held back or not, for the metric. Of two fences at one place it
// returns the later one.
func (f *fences) all() (all []metrics.Fence) {
	for _, file := range f.files {
		at := slices.IndexFunc(all, func(one metrics.Fence) bool { return one.File == file.url })
		if at < 0 {
			at = len(all)
			all = append(all, metrics.Fence{File: file.url})
		}
		if known := file.known(); known != nil && f.nowMS() < known.UntilMS {
			all[at].UntilMS = max(all[at].UntilMS, known.UntilMS)
		}
	}
	return all
}

// now returns the files that are held back, for status.
func (f *fences) now() []metrics.Fence {
	held := []metrics.Fence{}
	for _, file := range f.files {
		if known := file.known(); known != nil {
			held = append(held, *known)
		}
	}
	return held
}

// watch logs the beginning and the end of each fence, until ctx is done.
func (f *fences) watch(ctx context.Context) error {
	if len(f.files) == 0 {
		return nil
	}
	every := time.NewTicker(fenceInterval)
	defer every.Stop()
	for {
		f.step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
	}
}

func (f *fences) step(ctx context.Context) {
	for _, file := range f.files {
		if file.logged != nil && file.look != nil {
			// An operator may have ended the fence from another process. A disk that
			// does not answer is reported elsewhere.
			looking, cancel := context.WithTimeout(ctx, fenceLook)
			_ = file.look(looking)
			cancel()
		}
		known := file.known()
		if known == nil || f.nowMS() >= known.UntilMS {
			if file.logged != nil {
				file.logged = nil
				f.log.Info("grants begin again", zap.String("file", file.url), zap.Bool("sequences", known == nil || !known.Sequences))
			}
			continue
		}
		if file.logged == nil || file.logged.UntilMS != known.UntilMS {
			file.logged = known
			f.log.Error("grants are held back", zap.String("file", file.url),
				zap.String("until", snowflake.FormatMS(known.UntilMS)), zap.String("reason", known.Reason))
		}
	}
}
