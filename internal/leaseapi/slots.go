package leaseapi

// Paths of what the status page shows, and its parameters. All need the scope
// admin: they speak of every tenant.
const (
	PathStatus = "/status.json"  // GET: the server and its pools
	PathMap    = "/leases/map"   // GET: the state of a pool's slots, a byte for each cell
	PathFind   = "/leases/find"  // GET: holders by machine ID or host
	PathMaker  = "/leases/maker" // GET: who made an ID

	ParamFrom  = "from"
	ParamTo    = "to"
	ParamCells = "cells"
	ParamHost  = "host"
	ParamID    = "id"
	ParamLimit = "limit"
)

// Limits of these answers.
const (
	MaxCells = 8192 // of one map
	MaxPage  = 1000 // holders in one answer
)

// SlotMap is the state of the machine IDs [From, To), in cells of IDsPerCell each,
// the last one perhaps of fewer.
type SlotMap struct {
	Service    string `json:"service"`
	Pool       string `json:"pool"`
	BitID      int    `json:"bitId"`
	BitSeq     int    `json:"bitSeq"`
	Low        int64  `json:"low"` // the machine IDs that can be granted: [Low, End)
	End        int64  `json:"end"`
	From       int64  `json:"from"`
	To         int64  `json:"to"`
	IDsPerCell int64  `json:"idsPerCell"`
	// Cells has a byte per cell: leased<<4 | quarantined, each the share of the
	// cell from 0, none, to 15, all.
	Cells    []byte `json:"cells"`
	ListedAt int64  `json:"listedAt"` // Unix ms, when the store was asked
}

// The states of a slot.
const (
	SlotLeased      = "leased"
	SlotQuarantined = "quarantined" // its lease ended and was not handed back; not granted before freeAt
	SlotFree        = "free"        // it was leased before
)

// Holder is a grant as the status page shows it: the latest of its slot, or one
// of the past.
type Holder struct {
	MachineID int64  `json:"machineId"`
	BitID     int    `json:"bitId"`
	BitSeq    int    `json:"bitSeq"`
	Service   string `json:"service"`
	Host      string `json:"host"`
	PID       string `json:"pid"`
	Created   int64  `json:"created"` // Unix ms
	Expired   int64  `json:"expired"`
	FreeAt    int64  `json:"freeAt"` // from then on the slot can be granted again
	Released  bool   `json:"released"`
	State     string `json:"state"`
}

// Holders answers a search.
type Holders struct {
	Holders  []Holder `json:"holders"` // by machine ID
	More     bool     `json:"more"`    // there are others
	ListedAt int64    `json:"listedAt"`
}

// Maker says who made an ID.
type Maker struct {
	ID        string   `json:"id"`
	Timestamp int64    `json:"timestamp"` // Unix ms
	Time      string   `json:"time"`      // RFC 3339, UTC
	Kind      string   `json:"kind"`      // regular or fallback
	MachineID int64    `json:"machineId"`
	Sequence  int64    `json:"sequence"`
	BitID     int      `json:"bitId"`
	BitSeq    int      `json:"bitSeq"`
	Holders   []Holder `json:"holders"`
	Note      string   `json:"note"` // what the holders mean, for people
}

// Forecast is when a pool will be used up, by its course so far.
type Forecast struct {
	FullAt *int64 `json:"fullAt"` // Unix ms; null: not to be expected, or not known
	Note   string `json:"note"`   // for people
}

// Pool is one pool of machine IDs.
type Pool struct {
	Pool        string   `json:"pool"`
	Service     string   `json:"service"`  // the slots are counted in its layout
	Services    []string `json:"services"` // the configured ones that are granted from it
	Epoch       int64    `json:"epoch"`    // Unix ms
	BitTS       int      `json:"bitTs"`
	BitID       int      `json:"bitId"`
	BitSeq      int      `json:"bitSeq"`
	LayoutEnds  int64    `json:"layoutEnds"` // Unix ms, when bitTs runs out
	Low         int64    `json:"low"`
	End         int64    `json:"end"`
	Term        int64    `json:"term"` // ms
	Quarantine  int64    `json:"quarantine"`
	Leased      int64    `json:"leased"`
	Quarantined int64    `json:"quarantined"`
	Free        int64    `json:"free"`
	ListedAt    int64    `json:"listedAt"` // Unix ms; 0: not known, and the three above neither
	FencedUntil int64    `json:"fencedUntil"`
	Problem     string   `json:"problem"`  // why the pool cannot be looked at; "" where it can
	Fullness    string   `json:"fullness"` // roomy, nearly_full, almost_full, full; "": not known
	Forecast    Forecast `json:"forecast"`
}
