package proof

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/redis"
)

// longestTerm is the longest of a lock in a whole world. The stores know it from the beginning,
// as docs/providers advise: a term that is longer than all before it may be forgotten with its
// grant.
const longestTerm = 600

// redisLives is what Redis has in the store's record. The rules are the product's.
type redisLives struct {
	redis.Life
	server *redis.Server
}

func firstRedis(s *records) lives {
	server := &redis.Server{RunID: "run 0", ReplID: "history 0", ReplIn: "0", NowMS: s.now()}
	l := redis.FirstLife(*server, s.area)
	if s.trusting {
		l = l.WithoutFence()
	}
	return redisLives{l, server}
}

// replicas are those of Redis.
type replicas struct {
	waits     bool // a change waits until all have it: min_replicas=
	trusting  bool // so a failover begins no fence: failover_fence=0
	confirmed int  // so many changes are on all
}

// drawReplicas says how the leases of a world are replicated: as chance has it, with confirmations,
// or with no protection but these.
func (s *records) drawReplicas() {
	if s.kind != onRedis {
		return
	}
	s.waits, s.trusting = s.w.rnd.IntN(3) > 0, s.w.rnd.IntN(2) == 0
	switch s.w.focus {
	case unconfirmedNotUsed:
		s.waits, s.trusting = true, true
	case forgottenLeasesFenced:
		s.trusting = false
	}
	s.trusting = s.trusting && s.waits
}

// confirm waits for replicas after a change. What only ends something does not wait.
func (s *records) confirm(writes []record.Write) error {
	onlyEnds := len(writes) > 0 && !slices.ContainsFunc(writes, func(w record.Write) bool { return !w.Frees })
	switch {
	case !s.waits || onlyEnds:
		return nil
	case s.w.rnd.IntN(6) > 0:
		s.confirmed = len(s.done)
		return nil
	}
	s.w.count("Redis replicas did not confirm")
	if s.w.without(unconfirmedNotUsed) {
		return nil
	}
	return record.ErrUnconfirmed
}

// looked implements lives. The script compares this in each commit.
func (l redisLives) looked(s *records) lives {
	l.server.NowMS = s.now()
	after := redisLives{l.On(*l.server), l.server}
	if after != l {
		s.apply(change{lives: after})
	}
	return after
}

func (l redisLives) granting(grantMS int64) lives { return redisLives{l.Granting(grantMS), l.server} }
func (l redisLives) written() lives               { return l }
func (l redisLives) trusted() lives               { return redisLives{l.Trusted(), l.server} }
func (l redisLives) show(v *record.View)          { l.Show(v) }

func (l redisLives) byHand(s *records) lives {
	l.server.NowMS = s.latest()
	after := redisLives{l.Fenced(*l.server), l.server}
	s.apply(change{lives: after})
	return after
}

// forget implements lives: the server starts again, or another one takes its place, or it is
// the primary again, which it was before.
func (l redisLives) forget(s *records, changes int) {
	number := s.w.number()
	after := redis.Server{RunID: l.server.RunID, ReplID: fmt.Sprint("history ", number), ReplIn: l.server.ReplIn}
	if s.trusting { // all servers have the confirmed changes
		changes = min(changes, len(s.done)-s.confirmed)
		s.w.count("Redis failed over without a fence")
	}
	switch s.w.rnd.IntN(4) {
	case 0:
		s.w.count("Redis restarted")
		after.RunID, after.ReplIn = fmt.Sprint("run ", number), "0"
		if s.area != storeArea && !s.trusting && s.w.rnd.IntN(2) == 0 {
			s.w.count("Redis started from an older dump")
			changes = s.w.rnd.IntN(len(s.done) + 1)
		}
	case 1:
		s.w.count("Redis replica promoted")
		after.RunID, after.ReplIn, after.WasReplica = fmt.Sprint("run ", number), fmt.Sprint(number), true
		s.ahead += s.w.rnd.Int64N(20)
	case 2:
		s.w.count("Redis primary demoted and promoted again")
		after.ReplIn, after.WasReplica = fmt.Sprint(number), s.w.rnd.IntN(2) == 0
	case 3:
		s.w.count("Redis has another replication ID")
		*l.server = after
		return
	}
	*l.server = after
	s.lose(changes)
}

// postgresLives is what PostgreSQL has in table life, and beside it.
type postgresLives struct {
	postgresconn.Row
	server *postgresServer
}

type postgresServer struct{ timeline int }

func (p postgresServer) session() string { return fmt.Sprintf("1/%08X", p.timeline) }

func firstPostgres() lives {
	server := &postgresServer{timeline: 1}
	row := postgresconn.Row{Fences: 1, Server: server.session(), NextXID: 1000, LogEnd: 1000}
	row.Life, row.Trusted = "life 0", true
	return postgresLives{row, server}
}

// looked implements lives.
func (l postgresLives) looked(s *records) lives {
	after, _ := l.lookedBy(s, postgresconn.NewMemory())
	return after
}

// lookedBy is after a process has looked at the row: where it doubts, it begins a fence.
func (l postgresLives) lookedBy(s *records, m postgresconn.Memory) (after postgresLives, fenced bool) {
	l.Session, l.NowMS, l.LastMS, l.XID = l.server.session(), s.now(), s.now(), l.NextXID
	reason := m.Doubt(l.Row)
	if reason == "" {
		return l, false
	}
	return l.fence(s, reason), true
}

// fence is what the statement does that begins a fence.
func (l postgresLives) fence(s *records, reason string) postgresLives {
	l.Life, l.Fences, l.Server = fmt.Sprint("life ", s.w.number()), l.Fences+1, l.server.session()
	l.Trusted, l.Forgot, l.Reason = false, true, reason
	l.FromMS = s.latest()
	l.UntilMS = max(l.UntilMS, l.FromMS+cmp.Or(l.LongestMS, s.area.MaxGrantMS))
	l = l.written().(postgresLives)
	s.apply(change{lives: l})
	return l
}

func (l postgresLives) granting(grantMS int64) lives {
	l.LongestMS = max(l.LongestMS, grantMS)
	return l
}

func (l postgresLives) trusted() lives {
	l.Trusted, l.FromMS, l.UntilMS, l.Reason = true, 0, 0, ""
	return l
}

func (l postgresLives) byHand(s *records) lives {
	return l.fence(s, "an operator said that the database was put back")
}

func (l postgresLives) written() lives {
	l.NextXID, l.LogEnd = l.NextXID+1, l.LogEnd+100
	return l
}

func (l postgresLives) show(v *record.View) {
	v.Life = l.Life
	v.Fence = record.Fence{Doubt: !l.Trusted, FromMS: l.FromMS, UntilMS: l.UntilMS, Reason: l.Reason}
	if l.Forgot {
		v.Floor = max(v.Floor, v.NowMS*1000)
	}
}

// forget implements lives: an asynchronous standby is promoted, or an operator starts a copy of
// the server's files, which gives numbers of transactions out again.
func (l postgresLives) forget(s *records, changes int) {
	if s.w.rnd.IntN(2) == 0 {
		s.w.count("PostgreSQL standby promoted")
		l.server.timeline++
		s.ahead += s.w.rnd.Int64N(20)
		s.lose(changes)
		return
	}
	s.w.count("PostgreSQL started from a copy")
	s.lose(changes)
	now := s.lives.(postgresLives)
	now.LogEnd += s.w.rnd.Int64N(3000) // recovery writes to the log
	s.lives = now
	all := s.w.sessions()
	if s.users != nil {
		all = s.users()
	}
	for _, p := range all {
		if after, fenced := now.lookedBy(s, p.memory); fenced {
			s.lives = after
			return
		}
	}
	if slices.ContainsFunc(all, func(p *session) bool { return p.fences == now.Fences && p.changed >= now.NextXID }) {
		return // a process knows of a change that is missing, and has to say so
	}
	s.lives = now.byHand(s)
}
