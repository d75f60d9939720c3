package redis

import "github.com/kazahana/kazahana/internal/record"

// Life is the store's record of its present life, and the rules by which that changes, without a
// server: a simulation of servers that forget runs them.
type Life struct {
	state  state
	limits limits
}

// Server is a server's description of itself.
type Server struct {
	RunID, ReplID, ReplIn string
	WasReplica            bool
	NowMS                 int64
}

func (s Server) server() server { return server{s.RunID, s.ReplID, s.ReplIn, s.WasReplica, s.NowMS} }

// FirstLife is the life of a store that an operator has declared new.
func FirstLife(s Server, area record.Area) Life {
	l := Life{limits: limitsOf(area)}
	l.state, _ = settle(nil, s.server(), l.limits)
	l.state.Life = 1
	return l.Trusted()
}

// WithoutFence is the life where failover_fence=0 says that no failover loses anything.
func (l Life) WithoutFence() Life {
	l.limits.fenceMS, l.limits.fenceSet = 0, true
	return l
}

// Trusted is the life once an operator has said that nothing is missing.
func (l Life) Trusted() Life {
	l.state.trust()
	return l
}

// Fenced is the life once an operator has said that the data was put back.
func (l Life) Fenced(s Server) Life {
	l.state = l.state.fenced(s.NowMS, l.limits)
	return l
}

// On is the life of the store on that server.
func (l Life) On(s Server) Life {
	l.state, _ = settle(&l.state, s.server(), l.limits)
	return l
}

// Granting is the life once it knows that something is granted for so long.
func (l Life) Granting(grantMS int64) Life {
	l.state.LongestMS = max(l.state.LongestMS, grantMS)
	return l
}

// Show completes a view; its time is the server's.
func (l Life) Show(v *record.View) {
	v.Life, v.Floor, v.Fence = l.state.life(), max(v.Floor, l.state.floor), l.state.fence(l.limits, v.NowMS)
}
