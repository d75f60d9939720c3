package backend

import (
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// unknownTerm is how long a fence lasts where no watermark knows better, and what
// passes meanwhile.
const unknownTerm = lock.MaxTTL + time.Hour

// shop is a store file on a disk of its own, and all that it ever gave.
type shop struct {
	*testing.T
	disk   *disktest.Disk
	live   string
	clock  atomic.Int64
	token  int64 // the greatest of the lock "report"
	ends   int64 // Unix ms, of its latest lease
	values map[int64]bool
}

func newShop(t *testing.T) *shop {
	s := &shop{T: t, disk: disktest.Ext4(t), live: disktest.Memory(t), values: map[int64]bool{}}
	s.clock.Store(1_800_000_000_000)
	return s
}

func (s *shop) path() string { return filepath.Join(s.disk.Dir(), sqlitefile.StoreName) }

func (s *shop) open() *Store {
	s.Helper()
	st, err := OpenStore("sqlite:"+s.path(), StoreOptions{NowMS: s.clock.Load, LiveDir: s.live})
	must.Succeed(s, err)
	return st
}

func (s *shop) close(st *Store) {
	s.Helper()
	if err := st.Close(); err != nil {
		s.Error(err)
	}
}

func request(op lock.Op, key, owner string, ttl time.Duration) lock.Request {
	return lock.Request{Op: op, Tenant: "default", Key: key, Owner: owner, LeaseID: lock.NewLeaseID(), TTLMS: ttl.Milliseconds()}
}

// acquire takes the lock "report": never while another lease lasts, and with a token that is
// greater than all before.
func (s *shop) acquire(st *Store, owner string, ttl time.Duration) error {
	s.Helper()
	l, err := st.Locks.Do(s.Context(), request(lock.Acquire, "report", owner, ttl))
	if err != nil {
		return err
	}
	if l.Token <= s.token || l.AcquiredMS < s.ends {
		s.Errorf("%s was granted token %d at %d, after token %d until %d", owner, l.Token, l.AcquiredMS, s.token, s.ends)
	}
	s.token, s.ends = l.Token, l.ExpiresMS
	return nil
}

func (s *shop) next(st *Store, key string, o sequence.Options) (int64, error) {
	s.Helper()
	got, err := st.Sequences.Next(s.Context(), sequence.Request{Tenant: "default", Key: key, Count: 1, Options: o})
	if err == nil && key == "orders" {
		if s.values[got.First] {
			s.Errorf("the value %d was handed out twice", got.First)
		}
		s.values[got.First] = true
	}
	return got.First, err
}

// use takes the lock for a while, and values; an hour is more than any before.
func (s *shop) use(st *Store, owner string, ttl time.Duration) {
	s.Helper()
	must.Succeed(s, s.acquire(st, owner, ttl))
	for range 3 {
		if _, err := s.next(st, "orders", sequence.DefaultOptions()); err != nil {
			s.Fatal(err)
		}
	}
}

// fenced checks that no lock is granted until every lease has ended, and no value
// handed out until an operator has said how the sequence goes on.
func (s *shop) fenced(st *Store, most time.Duration) {
	s.Helper()
	begun := s.clock.Load()
	// A lease that the file knows is its owner's.
	var held *lock.FencedError
	var taken *lock.HeldError
	err := s.acquire(st, "carol", time.Minute)
	if errors.As(err, &taken) {
		_, err = st.Locks.Do(s.Context(), request(lock.Acquire, "never locked", "carol", time.Minute))
	}
	if !errors.As(err, &held) {
		s.Fatalf("the lock: %v", err)
	}
	s.Logf("%v", held)
	if held.UntilMS < s.ends || held.UntilMS > begun+most.Milliseconds() {
		s.Errorf("fenced until %d, %v from now; the last lease ends at %d", held.UntilMS, time.Duration(held.UntilMS-begun)*time.Millisecond, s.ends)
	}
	var doubt *sequence.FencedError
	if _, err := s.next(st, "orders", sequence.DefaultOptions()); !errors.As(err, &doubt) || doubt.UntilMS != 0 {
		s.Errorf("the sequence: %v", err)
	}
	if _, err := s.next(st, "never used", sequence.DefaultOptions()); !errors.As(err, &doubt) {
		s.Errorf("a sequence that is not known: %v", err)
	}
	if f := st.Fenced(); f == nil || f.UntilMS != held.UntilMS || !f.Sequences {
		s.Errorf("Fenced says %+v", f)
	}
	s.close(st)
	st = s.open()
	defer s.close(st)
	s.clock.Store(held.UntilMS - 1)
	if err := s.acquire(st, "carol", time.Minute); !errors.As(err, &held) && !errors.As(err, &taken) {
		s.Errorf("before the end, after a restart: %v", err)
	}
	s.clock.Store(held.UntilMS)
	if err := s.acquire(st, "carol", time.Minute); err != nil {
		s.Errorf("at the end: %v", err)
	}
	if _, err := s.next(st, "orders", sequence.DefaultOptions()); !errors.As(err, &doubt) {
		s.Errorf("the sequence at the end: %v", err)
	}
	if f := st.Fenced(); f == nil || !f.Sequences {
		s.Errorf("at the end Fenced says %+v", f)
	}
	last := int64(0)
	for v := range s.values {
		last = max(last, v)
	}
	if err := st.Sequences.Declare(s.Context(), sequence.Declaration{
		Tenant: "default", Key: "orders", Options: sequence.DefaultOptions(), Last: last,
	}); err != nil {
		s.Fatal(err)
	}
	for range 2 {
		if v, err := s.next(st, "orders", sequence.DefaultOptions()); err != nil || v <= last {
			s.Errorf("after Declare: %d, %v", v, err)
		}
	}
}

// complete checks that the file lacks nothing: the log had all that the copy did not.
func (s *shop) complete(st *Store) {
	s.Helper()
	defer s.close(st)
	var taken *lock.HeldError
	if err := s.acquire(st, "carol", time.Minute); !errors.As(err, &taken) || taken.Token != s.token {
		s.Errorf("the lock: %v", err)
	}
	if v, err := s.next(st, "orders", sequence.DefaultOptions()); err != nil || v != int64(len(s.values)) {
		s.Errorf("the sequence: %d, %v", v, err)
	}
}

// A store is put back in each way, while it is open and while it is not.
func TestStoreIsPutBack(t *testing.T) {
	for _, way := range disktest.Ways {
		for _, when := range []string{"stopped", "running", "running, log left", "after a reboot"} {
			if when == "after a reboot" && way.InPlace {
				continue // named in docs/uniqueness.md as what cannot be seen
			}
			t.Run(way.Name+", "+when, func(t *testing.T) {
				s := newShop(t)
				backup := filepath.Join(s.disk.Dir(), "backup")
				st := s.open()
				s.use(st, "alice", time.Minute)
				s.close(st)
				disktest.Copy(t, s.path(), backup)
				s.clock.Add(time.Hour.Milliseconds())
				st = s.open()
				s.use(st, "bob", 2*time.Hour)
				if strings.HasPrefix(when, "running") {
					way.Put(t, backup, s.path(), when != "running")
					if err := st.Look(t.Context()); err != nil {
						t.Logf("running: %v", err)
						if !errors.Is(err, sqlitefile.ErrMoved) && !strings.Contains(err.Error(), "damaged") {
							t.Error(err)
						}
						_ = st.Close()
						if st = s.open(); opensDamaged(t, st) {
							_ = st.Close()
							return
						}
					}
					if st.Fenced() == nil {
						s.complete(st)
						return
					}
				} else {
					s.close(st)
					if when == "after a reboot" {
						disktest.Reboot(t, s.live)
					}
					way.Put(t, backup, s.path(), false)
					st = s.open()
				}
				s.fenced(st, unknownTerm)
			})
		}
	}
}

// opensDamaged reports whether the file is refused as damaged.
func opensDamaged(t *testing.T, st *Store) bool {
	t.Helper()
	err := st.Look(t.Context())
	if err == nil {
		return false
	}
	if !strings.Contains(err.Error(), "damaged") {
		t.Errorf("opened again: %v", err)
	}
	t.Logf("refused: %v", err)
	return true
}

// Values that a fenced store knows of are repeated, which does not make their key known. Init ends
// the doubt.
func TestValuesOfAFencedStore(t *testing.T) {
	s := newShop(t)
	st := s.open()
	defer st.Close()
	take := sequence.Request{Tenant: "default", Key: "k", Count: 2, RequestID: "r", Options: sequence.DefaultOptions()}
	got, err := st.Sequences.Next(t.Context(), take)
	must.Succeed(t, err)
	_, err = st.Fence(t.Context())
	must.Succeed(t, err)
	for range 2 {
		if again, err := st.Sequences.Next(t.Context(), take); err != nil || again != got {
			t.Errorf("the values repeated: %+v, %v", again, err)
		}
		if _, err := s.next(st, "k", sequence.DefaultOptions()); !errors.As(err, new(*sequence.FencedError)) {
			t.Errorf("the next values: %v", err)
		}
	}
	must.Succeed(t, st.Init(t.Context()))
	if v, err := s.next(st, "k", sequence.DefaultOptions()); err != nil || v != got.Last()+1 || st.Fenced() != nil {
		t.Errorf("after Init: %d, %v, %+v", v, err, st.Fenced())
	}
}
