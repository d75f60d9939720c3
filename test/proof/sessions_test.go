package proof

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/record"
)

// way is how a process reaches the store.
type way interface {
	// turn returns when it is the call's turn among those of its process.
	turn(ctx context.Context, what string) error
	// send has the store do something, and waits for the answer.
	send(ctx context.Context, what string, do func(record.Store) error) error
}

// client is what a process calls. rest is the same store without a memory of it: each of its
// calls goes the way and back.
func (s *records) client(w way, rest record.Store, nowMS func() int64) record.Store {
	switch s.kind {
	case onRedis, onEtcd:
		return newOptimist(s, w, rest, nowMS)
	case onPostgres:
		return &session{Store: rest, s: s, way: w, memory: postgresconn.NewMemory()}
	}
	return rest
}

// session is a process's client of PostgreSQL: its rules run in the transaction, and it remembers
// its view of the server.
type session struct {
	record.Store
	s      *records
	way    way
	memory postgresconn.Memory
	// changed is the latest transaction, since there were so many fences, that it knows to be
	// committed: for the world.
	changed, fences int64
}

// errFenced: the transaction has found a loss, and the process has begun a fence.
var errFenced = errors.New("a fence begins")

// begin is the beginning of a transaction, which has a number of its own.
func (p *session) begin() (postgresconn.Row, error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	after, fenced := p.s.lives.(postgresLives).lookedBy(p.s, p.memory)
	begun := after.Row
	after.NextXID++
	p.s.lives = after
	if fenced {
		return begun, errFenced
	}
	return begun, nil
}

// within has the server do something in a transaction, anew where a fence had to begin.
func (p *session) within(ctx context.Context, what string, do func(record.Store) error) (row postgresconn.Row, err error) {
	for {
		begun := make(chan postgresconn.Row, 1)
		err = p.way.send(ctx, what, func(store record.Store) error {
			row, err := p.begin()
			begun <- row
			if err != nil {
				return err
			}
			return do(store)
		})
		if errors.Is(err, errFenced) {
			continue
		}
		if err == nil {
			row = <-begun
		}
		return row, err
	}
}

// Change implements record.Store.
func (p *session) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	at := make(chan int64, 1)
	row, err := p.within(ctx, "change "+strings.Join(ask.Keys, " "), func(store record.Store) error {
		ms, err := store.Change(context.Background(), ask, rule)
		if err == nil && p.s.unsure() {
			err = fmt.Errorf("%w: an administrator has cancelled the wait for a standby", record.ErrUnconfirmed)
		}
		at <- ms
		return err
	})
	if err != nil {
		return 0, err
	}
	p.acknowledged(row)
	return <-at, nil
}

func (p *session) acknowledged(row postgresconn.Row) {
	p.memory.Acknowledged(row)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if row.Fences > p.fences {
		p.changed, p.fences = 0, row.Fences
	}
	if row.Fences == p.fences {
		p.changed = max(p.changed, row.XID)
	}
}

// unsure draws whether a commit does not wait for a standby. One of leases does: the trail would not
// know of a grant that is given back.
func (s *records) unsure() bool {
	if !s.w.whole || s.users != nil || s.w.rnd.IntN(40) > 0 {
		return false
	}
	s.w.count("PostgreSQL did not wait for a standby")
	return true
}

// Read implements record.Store.
func (p *session) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	if err := ctx.Err(); err != nil {
		return record.View{}, err
	}
	seen := make(chan record.View, 1)
	if _, err := p.within(ctx, "read "+strings.Join(ask.Keys, " "), func(store record.Store) error {
		v, err := store.Read(context.Background(), ask)
		seen <- v
		return err
	}); err != nil {
		return record.View{}, err
	}
	return <-seen, nil
}

// sessions are those of the processes that run.
func (w *world) sessions() (all []*session) {
	for _, d := range w.daemons {
		if d.life != nil && d.life.host != nil {
			if p, is := d.life.host.records.(*session); is {
				all = append(all, p)
			}
		}
	}
	return all
}
