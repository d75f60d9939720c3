package redis

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

// Store implements record.Store on a Redis server. It does not own the client.
type Store struct {
	client *redisconn.Client
	area   record.Area
	prefix string // of the names of all keys and channels
	cfg    redisconn.Config
	place  string // cfg.Place()
	limits limits
	turns  *turns.Turns[known]
	list   *redis.Script

	elapsed func() time.Duration // since the store was opened; counts suspend
	looked  atomic.Int64         // when the server was last looked at as a whole: elapsed then
	life    atomic.Pointer[life] // as last seen; nil before anything was
	ahead   atomic.Int64         // the server's clock, less elapsed, in ms

	commits  atomic.Int64
	watchers watchers

	mu       sync.Mutex // guards closed, and that no sweep begins afterwards
	closed   bool
	sweeping bool
	lifetime context.Context // ends with Close
	end      context.CancelFunc
	tasks    sync.WaitGroup // sweeps
}

var _ record.Store = (*Store)(nil)

// New uses the client, under keys of the area that no pool of leases can have. The client's
// owner closes it after the store.
func New(client *redisconn.Client, area record.Area) *Store {
	s := &Store{client: client, area: area, cfg: client.Config(), place: client.Config().Place(), turns: turns.New(known.size)}
	s.prefix = s.cfg.Prefix + "@" + area.Name
	opened := clock.System{}.Boot()
	s.elapsed = func() time.Duration { return clock.System{}.Boot() - opened }
	s.limits = limitsOf(area)
	s.limits.fenceMS, s.limits.fenceSet = s.cfg.FailoverFence.Milliseconds(), s.cfg.FailoverFenceSet
	s.list = s.fill("list", "", "")
	s.looked.Store(int64(-lookEvery))
	s.watchers.client, s.watchers.pingAfter = client, pingAfter
	s.lifetime, s.end = context.WithCancel(context.Background())
	return s
}

// Check reaches out to the server, and reports whether it and the user can be used.
func (s *Store) Check(ctx context.Context) error {
	_, err := redisconn.RunAnywhere(ctx, s.client, redisconn.Repeatable, s.hello)
	return err
}

// Init implements record.Store.
func (s *Store) Init(ctx context.Context) error {
	_, err := s.edit(ctx, func(s *state, _ int64) { s.trust() })
	return err
}

// Fence implements record.Store.
func (s *Store) Fence(ctx context.Context) error {
	var life int64 // that an earlier try has begun, or another caller meanwhile
	_, err := s.edit(ctx, func(st *state, nowMS int64) {
		if life == 0 || st.Life < life || st.Reason != byHand {
			*st = st.fenced(nowMS, s.limits)
			life = st.Life
		}
	})
	return err
}

// Close implements record.Store: it ends watches and sweeps.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.watchers.close()
	s.tasks.Wait()
	return nil
}

func (s *Store) recordKey(key string) string { return s.prefix + "/" + key }
func (s *Store) stateKey() string            { return s.prefix }
func (s *Store) listKey() string             { return s.prefix + ":list" }
func (s *Store) dueKey() string              { return s.prefix + ":due" }
func (s *Store) touchKey() string            { return s.prefix + ":touch" }

// channels is how many there are: a watcher of one record hears of few others.
const channels = 64

func (s *Store) channel(n int) string { return s.prefix + ":tell:" + strconv.Itoa(n) }

// channelOf is where changes of the record are told.
func (s *Store) channelOf(key string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return s.channel(int(h.Sum32() % channels))
}

// estimate is the server's clock, or ahead of it by as long as an answer takes: a term
// that is nearly over may be shown as over, and the commit compares that.
func (s *Store) estimate() int64 {
	if s.cfg.NowMS != nil {
		return s.cfg.NowMS()
	}
	return s.ahead.Load() + s.elapsed().Milliseconds()
}

// synchronize takes note of the server's clock, as it was after sent.
func (s *Store) synchronize(nowMS int64, sent time.Duration) {
	s.ahead.Store(nowMS - sent.Milliseconds() + 1)
}

// Read implements record.Store.
func (s *Store) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	if err := cmp.Or(ask.Validate(), ctx.Err()); err != nil {
		return record.View{}, err
	}
	c := s.newChange(ask)
	c.seen = make([]known, len(ask.Keys))
	if err := c.look(ctx); err != nil {
		return record.View{}, err
	}
	v, _ := c.View()
	return v, nil
}

// List implements record.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	if err := cmp.Or(record.ValidatePage(prefix, after, limit), ctx.Err()); err != nil {
		return nil, err
	}
	from, to := "["+prefix, "("+record.EndOf(prefix)
	if after >= prefix {
		from = "(" + after
	}
	return redisconn.RunAnywhere(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn redis.Cmdable) ([]record.Head, error) {
		if s.life.Load() == nil {
			if _, err := s.hello(ctx, conn); err != nil {
				return nil, err
			}
		}
		args := []any{from, to, limit, s.recordKey(""), headBytes + record.MaxHead}
		if s.cfg.NowMS != nil {
			args = append(args, s.cfg.NowMS())
		}
		got, err := s.list.Run(ctx, conn, []string{s.stateKey(), s.listKey()}, args...).Slice()
		if err != nil {
			return nil, err
		}
		return heads(got)
	})
}

// heads reads the script's answer.
func heads(got []any) (page []record.Head, err error) {
	if len(got) != 3 {
		return nil, errors.New("the answer of a script cannot be read")
	}
	nowMS, _ := got[0].(int64)
	keys, _ := got[1].([]any)
	texts, _ := got[2].([]any)
	for i := range min(len(keys), len(texts)) {
		key, _ := keys[i].(string)
		text, _ := texts[i].(string)
		k, err := parse(key, []byte(text))
		if err != nil {
			return nil, err
		}
		if !k.absent() { // it was removed by hand
			page = append(page, record.HeadOf(key, k.record(nowMS)))
		}
	}
	return page, nil
}
