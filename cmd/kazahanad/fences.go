package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/stores"
)

const (
	// fenceInterval is how often watch checks whether a file is held back.
	fenceInterval = time.Second
	// fenceLook bounds one check of a file that is held back.
	fenceLook = 3 * time.Second
)

// fences are the SQLite files and PostgreSQL stores of the process. Each may be held
// back because it may have forgotten grants.
type fences struct {
	files []fencedFile
	nowMS func() int64
	log   *zap.Logger
	held  map[string]metrics.Fence // those that were logged
}

// fencedFile is a file that may be held back.
type fencedFile struct {
	url   string
	known func() *metrics.Fence           // without I/O; nil: it is not held back, or not open yet
	look  func(ctx context.Context) error // refreshes known
}

// newFences finds those of the provider and of the store, which may be nil.
func newFences(p provider.Provider, store *stores.Store, nowMS func() int64, log *zap.Logger) *fences {
	f := &fences{nowMS: nowMS, log: log, held: map[string]metrics.Fence{}}
	if name := p.Info().Name; name == "sqlite" || name == "postgres" {
		url := p.Info().URL
		f.files = append(f.files, fencedFile{
			url: url,
			known: func() *metrics.Fence {
				if fenced := p.Fenced(); fenced != nil {
					return &metrics.Fence{File: url, UntilMS: fenced.UntilMS, Reason: fenced.Reason}
				}
				return nil
			},
			look: p.Look,
		})
	}
	if store != nil && store.TellsFence() {
		f.files = append(f.files, fencedFile{
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

// all returns every file, held back or not, for the metric.
func (f *fences) all() []metrics.Fence {
	all := make([]metrics.Fence, 0, len(f.files))
	for _, file := range f.files {
		fence := metrics.Fence{File: file.url}
		if known := file.known(); known != nil && f.nowMS() < known.UntilMS {
			fence.UntilMS = known.UntilMS
		}
		all = append(all, fence)
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
		before, was := f.held[file.url]
		if was {
			// An operator may have ended the fence from another process. A disk that
			// does not answer is reported elsewhere.
			looking, cancel := context.WithTimeout(ctx, fenceLook)
			_ = file.look(looking)
			cancel()
		}
		known := file.known()
		if known == nil || f.nowMS() >= known.UntilMS {
			if was {
				delete(f.held, file.url)
				f.log.Info("grants begin again", zap.String("file", file.url), zap.Bool("sequences", known == nil || !known.Sequences))
			}
			continue
		}
		if !was || before.UntilMS != known.UntilMS {
			f.held[file.url] = *known
			f.log.Error("grants are held back", zap.String("file", file.url),
				zap.String("until", snowflake.FormatMS(known.UntilMS)), zap.String("reason", known.Reason))
		}
	}
}
