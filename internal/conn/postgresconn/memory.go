package postgresconn

// Row is the part of a store's life that a transaction reads.
type Row struct {
	Fence
	Fences    int64  // how many there were
	Server    string // the server of the row's life
	LongestMS int64
	// Session is the life of the session's server, LogEnd the end of its log, and NextXID
	// above the numbers of all transactions that have ended.
	Session               string
	LogEnd, NowMS, LastMS int64
	NextXID, XID          int64
}

func (r Row) life() life {
	return life{
		Fence: r.Fence, fences: r.Fences, server: r.Server, longestMS: r.LongestMS, session: r.Session, logEnd: r.LogEnd,
		nowMS: r.NowMS, lastMS: r.LastMS, nextXID: r.NextXID, xid: r.XID,
	}
}

// Memory is a process's memory of a store, and the rules by which it doubts that the store has
// kept that, without a server: a simulation of servers that forget runs them.
type Memory struct{ store *Store }

// NewMemory returns the memory of a process that has seen nothing.
func NewMemory() Memory { return Memory{&Store{seen: memory{ends: map[string]int64{}}}} }

// Doubt says why the store may have forgotten something. Where it has not, that is "", and
// the process remembers what it has seen.
func (m Memory) Doubt(r Row) string {
	reason := m.store.remembered().doubt(r.life())
	if reason == "" {
		m.store.note(r.life())
	}
	return reason
}

// Acknowledged remembers a change of this process.
func (m Memory) Acknowledged(r Row) { m.store.acknowledged(r.life()) }
