package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lazy"
	"github.com/kazahana/kazahana/internal/lock"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/placement/storage"
	placementhttp "github.com/kazahana/kazahana/internal/placement/storage/http"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	recordmemory "github.com/kazahana/kazahana/internal/record/memory"
	recorddb "github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/sequence"
	sequencehttp "github.com/kazahana/kazahana/internal/sequence/http"
)

// StoreOptions are what a URL does not say.
type StoreOptions struct {
	// NowMS is the clock of stores that use this host's, in Unix ms.
	NowMS func() int64
	// LiveDir is a directory in memory where a store in a file keeps what tells the
	// file from an older copy; "" for none.
	LiveDir string
	// Ignore names parameters of the URL that concern others: of the provider's
	// URL, where that names the store too.
	Ignore []string
	// Limits are those of the store. HTTP stores have limits of their own.
	Limits bounds.Limits
}

// Store is locks, sequences and activation records in one place.
type Store struct {
	Locks      lock.Store
	Sequences  sequence.Store
	Placements storage.Storage
	URL        string // without secrets
	Shared     bool   // other hosts use the same one
	records    *lazyRecords
	asked      atomic.Pointer[Fence] // what the file's owner said; nil: nothing is held back
}

// Close ends the use of the store. The store's records stay.
func (s *Store) Close() error { return s.records.Close() }

// Init says that the store is new, or knows all there is to know: locks are granted and values
// handed out from now on.
func (s *Store) Init(ctx context.Context) error {
	_, err := s.orOwner(ctx, s.records.Init(ctx), ownerRequest{Op: ownerInit}, nil)
	return err
}

// Declare is the Declare of Sequences.
func (s *Store) Declare(ctx context.Context, d sequence.Declaration) error {
	_, err := s.orOwner(ctx, s.Sequences.Declare(ctx, d), ownerRequest{Op: ownerDeclare, Declare: &d}, nil)
	return err
}

// Held reports whether the store holds something back, so that Init has a meaning now. blank: it
// had no record of itself, and looks new.
func (s *Store) Held(ctx context.Context) (held, blank bool, err error) {
	view, err := s.records.Read(ctx, record.Ask{})
	if err == nil {
		f := view.Fence
		return f.Doubt || view.NowMS < f.UntilMS, f.Blank, nil
	}
	answer, err := s.orOwner(ctx, err, ownerRequest{Op: ownerLook}, nil)
	return answer.Fence != nil, false, err
}

// Remote reports whether a lease server keeps the store. Its fence is the server's matter.
func (s *Store) Remote() bool { return strings.HasPrefix(s.URL, "http") }

// Fence is what a store says that may have forgotten something.
type Fence struct {
	UntilMS int64  // Unix ms: until then no lock is granted
	Reason  string // for people
	// Sequences: used ones hand out nothing until an operator says how they go on, after any
	// time.
	Sequences bool
}

// Fenced is the fence as far as the last operation has seen; nil where there is
// none, and before the first use. It does no I/O.
func (s *Store) Fenced() *Fence {
	if _, ok := s.records.Ready(); ok {
		return s.records.known()
	}
	return s.asked.Load()
}

// Fence holds back all that may have been forgotten as after a loss: for use after an operator
// has put back an older state of the store in a way that it cannot notice.
func (s *Store) Fence(ctx context.Context) (*Fence, error) {
	err := s.records.Fence(ctx)
	if err == nil {
		return s.Fenced(), nil
	}
	answer, err := s.orOwner(ctx, err, ownerRequest{Op: ownerFence}, nil)
	return answer.Fence, err
}

// Look asks the store, so that Fenced is up to date.
func (s *Store) Look(ctx context.Context) error {
	_, err := s.records.Read(ctx, record.Ask{})
	if err == nil {
		return nil
	}
	answer, err := s.orOwner(ctx, err, ownerRequest{Op: ownerLook}, nil)
	s.asked.Store(answer.Fence)
	return err
}

// Backup writes a consistent copy of a store in a file to another one, which must
// not exist.
func (s *Store) Backup(ctx context.Context, to string) error {
	records, err := s.records.Get(ctx)
	if err == nil {
		if records.backup == nil {
			return fmt.Errorf("store %s: it is no file: %w", s.URL, errors.ErrUnsupported)
		}
		return records.backup(ctx, to)
	}
	if !errors.As(err, new(*sqlitefile.OwnedError)) {
		return err
	}
	copied, failed := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if failed != nil {
		return fmt.Errorf("a backup overwrites nothing: %w", failed)
	}
	if _, err = s.orOwner(ctx, err, ownerRequest{Op: ownerBackup}, copied); err == nil {
		err = copied.Sync()
	}
	if err = errors.Join(err, copied.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// storeExample is a file that a URL could mean.
const storeExample = "/var/lib/kazahana/" + sqlitefile.StoreName

// Beside is the URL of the store that goes with a provider where none is named,
// "" for none: the provider itself where it can, else a file in the state
// directory. With Kubernetes there is none: a file in each pod would give each pod locks
// of its own.
func Beside(providerURL, stateDir string) string {
	scheme, _, _ := strings.Cut(providerURL, ":")
	switch scheme = strings.ToLower(scheme); {
	case scheme == sqlitefile.Scheme:
		leases, _, err := sqlitefile.ParseURL(providerURL, storeExample)
		if err != nil {
			return providerURL // opening it names the fault
		}
		return sqlitefile.URL(sqlitefile.StoreBeside(leases))
	case scheme == "memory" || slices.Contains(httpconn.Schemes(), scheme) || slices.Contains(serverSchemes(), scheme):
		return providerURL
	case stateDir == "" || scheme == kubeconn.Scheme:
		return ""
	}
	return sqlitefile.URL(filepath.Join(stateDir, sqlitefile.StoreName))
}

// OpenStore returns the store that the URL names. It reaches out to nothing. The error
// names the fault of the URL, and never repeats a part of it that may hold a secret.
func OpenStore(rawURL string, opts StoreOptions) (*Store, error) {
	if opts.NowMS == nil {
		opts.NowMS = func() int64 { return time.Now().UnixMilli() }
	}
	scheme, _, ok := strings.Cut(rawURL, ":")
	switch scheme = strings.ToLower(scheme); {
	case !ok:
		return nil, errors.New("a store is named by a URL, for example sqlite:" + storeExample)
	case scheme == "memory":
		return newStore("memory:", false, 0, opts.Limits, func(context.Context) (*opened, error) {
			return &opened{Store: recordmemory.NewArea(storeArea(0), opts.NowMS)}, nil
		})
	case scheme == sqlitefile.Scheme:
		return openSQLite(rawURL, opts)
	case slices.Contains(serverSchemes(), scheme):
		on, _, err := parseServer(scheme, rawURL, opts.Ignore, nil)
		if err != nil {
			return nil, err
		}
		return on.store(opts.Limits)
	case slices.Contains(httpconn.Schemes(), scheme):
		return openHTTPStore(rawURL)
	}
	return nil, fmt.Errorf("%q keeps no locks and sequences; what does: memory, sqlite, %s", scheme,
		strings.Join(slices.Concat(serverSchemes(), httpconn.Schemes()), ", "))
}

// storeArea is the area of locks, sequences and activation records. maxLockTTL is the longest
// term of a lock, which is all that is granted there; 0: the longest of all.
func storeArea(maxLockTTL time.Duration) record.Area {
	return record.Area{Name: "store", MaxGrantMS: cmp.Or(maxLockTTL, lock.MaxTTL).Milliseconds()}
}

// newStore keeps everything in one record store, which open opens. maxLockTTL is as in
// storeArea.
func newStore(url string, shared bool, maxLockTTL time.Duration, limits bounds.Limits, open func(context.Context) (*opened, error)) (*Store, error) {
	records := &lazyRecords{Value: lazy.New("store "+url, open, (*opened).close)}
	began := time.Now()
	bounded := bounds.New(records, limits, func() time.Duration { return time.Since(began) })
	queued := newBoundedCalls(bounded)
	locks, err := lock.OnRecords(queued).Limit(maxLockTTL)
	if err != nil {
		return nil, err
	}
	return &Store{
		Locks: locks, Sequences: sequence.OnRecords(queued), Placements: storage.OnRecords(queued), URL: url, Shared: shared, records: records,
	}, nil
}

func openSQLite(rawURL string, opts StoreOptions) (*Store, error) {
	path, query, err := sqlitefile.ParseURL(rawURL, storeExample)
	if err != nil {
		return nil, err
	}
	if _, err := connurl.ParseQuery(query, opts.Ignore); err != nil {
		return nil, err
	}
	var s *Store
	s, err = newStore(sqlitefile.URL(path), false, 0, opts.Limits, func(ctx context.Context) (*opened, error) {
		area := storeArea(0)
		file, err := sqlitefile.OpenStore(ctx, path, sqlitefile.Options{
			NowMS: opts.NowMS, LiveDir: opts.LiveDir, MaxTermMS: area.MaxGrantMS,
		}, recorddb.Tables)
		if err != nil {
			return nil, err
		}
		_ = os.RemoveAll(path + copySuffix) // if it fails, the next backup says so
		o := &opened{Store: recorddb.New(file, area), closers: []io.Closer{file}, backup: file.Backup}
		// Without it only commands of operators fail, and say so.
		if socket := file.Socket(); socket != "" {
			if owner, err := s.listenAsOwner(socket, path); err == nil {
				o.closers = []io.Closer{owner, file}
			}
		}
		return o, nil
	})
	return s, err
}

// openHTTPStore opens the services of a lease server, which is asked for requests and not
// for records.
func openHTTPStore(rawURL string) (*Store, error) {
	cfg, err := httpconn.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	client, err := httpconn.New(cfg)
	if err != nil {
		return nil, err
	}
	// Nothing of it can be forgotten here.
	none := &opened{Store: recordmemory.New(nil), closers: []io.Closer{client}}
	return &Store{
		Locks: lockhttp.New(client), Sequences: sequencehttp.New(client), Placements: placementhttp.New(client), URL: cfg.Names(), Shared: true,
		records: &lazyRecords{Value: lazy.Opened("store "+cfg.Names(), none, (*opened).close)},
	}, nil
}
