package proof

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordtest"
)

// open leaves the model open.
type open struct{ record.Store }

func (open) Close() error { return nil }

// TestModelsAreStores holds each model to the suite that its real store passes.
func TestModelsAreStores(t *testing.T) {
	for _, kind := range []storeKind{onRedis, onEtcd, onPostgres} {
		t.Run(kind.String(), func(t *testing.T) {
			recordtest.Run(t, func(t *testing.T) recordtest.Target {
				var clock atomic.Int64
				clock.Store(1_800_000_000_000)
				w := &world{rnd: newRand(1), began: time.Now()}
				areas := map[record.Area]*records{}
				target := recordtest.Target{
					Open: func(area record.Area) (record.Store, error) {
						s := areas[area]
						if s == nil {
							s = &records{w: w, kind: kind, area: area, clock: clock.Load}
							s.begin()
							t.Cleanup(func() { s.Close() })
							areas[area] = s
						}
						return open{s.client(direct{s}, s, clock.Load)}, nil
					},
					Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
					Between: kind != onPostgres,
				}
				if kind == onEtcd {
					target.Advance = nil
					target.Expire = func(key string) { areas[recordtest.One].expire(key, &clock) }
				}
				return target
			})
		})
	}
}

// expire ends the term of a record as etcd does.
func (s *records) expire(key string, clock *atomic.Int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.stamps[key].write
	w.TermMS, w.Tell = 1, true
	if w.KeepMS == 0 && w.Mark == 0 {
		w = record.Write{Key: key, Tell: true}
	}
	_, err := s.Store.Change(context.Background(), record.Ask{Keys: []string{key}}, func(record.View) ([]record.Write, error) { return []record.Write{w}, nil })
	must(err, nil)
	clock.Add(1)
}

// TestDirectoriesHaveInodesOfTheirOwn holds the model of a file system to what the owner of
// locks rests on: no two directories have one inode. A daemon that has a removed directory open
// goes on replacing files in it.
func TestDirectoriesHaveInodesOfTheirOwn(t *testing.T) {
	f := newFileSystem(&world{rnd: newRand(1)}, diskDevice, true)
	removed := f.newDirectory()
	f.put(f.root, "state", removed)
	f.put(removed, "state", f.newFile(nil))
	f.remove(f.root, "state")
	has := map[uint64]bool{}
	for range 4 {
		inode := f.newDirectory().inode
		if has[inode] {
			t.Fatalf("two directories have the inode %d", inode)
		}
		has[inode] = true
		f.put(removed, "state", f.newFile(nil))
	}
}
