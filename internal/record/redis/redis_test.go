package redis

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/record/turns"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

const (
	began    = 1_800_000_000_000
	maxGrant = time.Hour
)

var area = record.Area{Name: "store", MaxGrantMS: maxGrant.Milliseconds()}

// owned closes the client with the store.
type owned struct {
	*Store
	client *redisconn.Client
}

func (o owned) Close() error {
	_ = o.Store.Close()
	return o.client.Close()
}

func open(cfg redisconn.Config, area record.Area) (owned, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	return owned{New(client, area), client}, nil
}

func mustOpen(t testing.TB, cfg redisconn.Config) owned {
	t.Helper()
	s, err := open(cfg, area)
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func mustInit(t testing.TB, s owned) {
	t.Helper()
	must.Succeed(t, s.Init(testContext(t)))
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestConformance(t *testing.T) {
	recordtest.Run(t, func(t *testing.T) recordtest.Target {
		cfg := redistest.Shared(t).Config()
		var clock atomic.Int64
		clock.Store(began)
		cfg.NowMS = clock.Load
		return recordtest.Target{
			Open:    func(area record.Area) (record.Store, error) { return open(cfg, area) },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
			Between: true,
		}
	})
}

// A change is not carried out where the stored record differs from what it was decided on, even
// if its version is the same, as far as the version has half of its bytes: then all is compared.
func TestCommitComparesRecords(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	raw := server.Raw()
	defer raw.Close()
	stored := r.store.recordKey("k")
	set := func(text string) {
		t.Helper()
		var err error
		if text == "" {
			err = raw.Del(testContext(t), stored).Err()
		} else {
			err = raw.Set(testContext(t), stored, text, 0).Err()
		}
		must.Succeed(t, err)
	}
	commit := func(what, seen, other string) {
		t.Helper()
		set(seen)
		c := r.store.newChange(record.Ask{Keys: []string{"k"}})
		c.seen = make([]known, 1)
		must.Succeed(t, c.look(testContext(t)))
		set(other)
		_, got, _ := c.Commit(testContext(t), []record.Write{{Key: "k", Value: []byte("decided on what was seen")}})
		// Seeds 000-6.2-1 and 001-13.
		if now := raw.Get(testContext(t), stored).Val(); got == turns.Done || now != other {
			t.Errorf("where %q became %s, the change was carried out", seen, what)
		}
	}
	for _, term := range []int64{0, 60 * minute} {
		version := 1
		if term > 0 {
			version += momentBytes
		}
		for _, size := range []int{1, 10, 18, 20, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 40} {
			set("")
			r.put(record.Write{Key: "k", Value: []byte(strings.Repeat("v", size)), TermMS: term})
			text := raw.Get(testContext(t), stored).Val()
			commit("nothing", text, "")
			commit("a record, from nothing", "", text)
			commit("one of another version", text, text[:version]+string([]byte{text[version] ^ 1})+text[version+1:])
			commit("half of it", text, text[:len(text)/2])
			if len(text) < tagBytes {
				commit("one byte more", text, text+"v")
				commit("much more", text, text+strings.Repeat("v", 2*tagBytes))
			}
			if len(text) <= tagBytes {
				commit("one byte less", text, text[:len(text)-1])
			}
			if text[version-1]&isLong == 0 && len(text) >= tagBytes {
				t.Errorf("%q has half a version, and is not compared as a whole", text)
			}
		}
	}
}
