package leaseserver

import (
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// reloadCheck is how often files in use are checked for changes.
const reloadCheck = time.Second

// Reloaded is a value made from files, and made anew when one of them changes. If the
// files cannot be read, the old value stays: a half-written file must not lock all
// clients out.
type Reloaded[T any] struct {
	what  string
	paths []string
	load  func() (T, error)
	log   *zap.Logger
	now   func() time.Time

	mu      sync.Mutex
	value   T
	stamp   string // of the files at the last attempt to read them
	refused bool   // the last attempt failed
	checked time.Time
}

// NewReloaded loads the value for the first time.
func NewReloaded[T any](what string, paths []string, load func() (T, error), log *zap.Logger) (*Reloaded[T], error) {
	r := &Reloaded[T]{what: what, paths: paths, load: load, log: log, now: time.Now}
	r.stamp, r.checked = r.stampNow(), r.now()
	var err error
	if r.value, err = load(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return r, nil
}

// stampNow changes with the files.
func (r *Reloaded[T]) stampNow() string {
	stamp := ""
	for _, path := range r.paths {
		info, err := os.Stat(path)
		if err != nil {
			stamp += "absent;"
			continue
		}
		stamp += fmt.Sprintf("%d %d;", info.ModTime().UnixNano(), info.Size())
	}
	return stamp
}

// Get returns the value, after checking the files if the last check is reloadCheck ago.
func (r *Reloaded[T]) Get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.now(); now.Sub(r.checked) >= reloadCheck {
		r.checked = now
		if stamp := r.stampNow(); stamp != r.stamp {
			r.reload(stamp)
		}
	}
	return r.value
}

// Refused looks at the files as Get does, and reports whether they could not be read. A
// nil r has no files.
func (r *Reloaded[T]) Refused() bool {
	if r == nil {
		return false
	}
	r.Get()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// Reload reads the files again, even if they have not changed.
func (r *Reloaded[T]) Reload() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reload(r.stampNow())
}

func (r *Reloaded[T]) reload(stamp string) {
	value, err := r.load()
	r.stamp, r.refused = stamp, err != nil
	if err != nil {
		r.log.Error(r.what+" cannot be read again; what was read before stays in use", zap.Error(err))
		return
	}
	r.value = value
	r.log.Info(r.what + " read again")
}
