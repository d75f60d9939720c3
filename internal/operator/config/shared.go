package config

import (
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Leases are the keys of where leases come from and what outlives the process.
type Leases struct {
	StateDir        string        `name:"state-dir" type:"text" placeholder:"DIR" example:"/var/lib/kazahana" help:"Durable local state: a daemon's identity, the floor below which no ID is made again, the files of the default provider and store. The word none keeps nothing: then name a provider, and order is lost at a restart (default $STATE_DIRECTORY, else /var/lib/kazahana for root, else $XDG_STATE_HOME/kazahana or ~/.local/state/kazahana)."`
	LiveDir         string        `name:"live-dir" type:"text" placeholder:"DIR" example:"/run/kazahana-live" help:"Where leases and marks survive a kill -9: a directory on a file system in memory (tmpfs). With none no lease is adopted after a crash, and a frozen disk stops the IDs (default the entry of $RUNTIME_DIRECTORY that ends in -live, else $XDG_RUNTIME_DIR/kazahana/live, /run/kazahana/live for root, /dev/shm/kazahana-UID: the first that is in memory)."`
	Provider        string        `name:"provider" type:"provider" placeholder:"URL" example:"sqlite:/var/lib/kazahana/leases.db" help:"What grants machine IDs, as a URL: sqlite:PATH for one host; kubernetes: for the pods of a cluster; redis://, etcd://, postgres:// or a lease server's https:// for many hosts; static:ID, ip:, none: (a last colon needs quotes in YAML). Its parameters (?term=10m) are the terms of the leases. Hosts with files of their own make the same IDs, unless each has its own range (?ids=LOW-HIGH) (default sqlite:STATE_DIR/leases.db; inside Kubernetes there is no default)."`
	ProviderTimeout time.Duration `name:"provider-timeout" type:"duration" min:"1ms" default:"3s" placeholder:"DURATION" help:"Limit of one call to the provider, 1ms or more. Requests for IDs never wait for such a call."`

	livePlaces []string
}

// LiveDirs returns live_dir ("" for none) or, if it is not set, the default places:
// the first that is in memory counts.
func (l *Leases) LiveDirs() (dir string, places []string) { return l.LiveDir, l.livePlaces }

// Records are the keys of locks, sequences and placement.
type Records struct {
	Store     string    `name:"store" type:"store" placeholder:"URL" example:"sqlite:/var/lib/kazahana/store.db" help:"Where locks and sequences live: sqlite:PATH for one process, redis://..., etcd://..., postgres://..., http(s)://... of a lease server, or none (default the provider if it can keep them, else a SQLite file in the state directory; with kubernetes: none). Name it here before you change the provider: they do not move."`
	MaxKeys   int       `name:"max-keys" type:"number" max:"1073741824" default:"1000000" placeholder:"N" help:"Keys of locks, sequences and placement that the store may have before it takes no new ones, up to 1073741824, of which one user or tenant makes three quarters at most; 0 is no limit. Redis, etcd and PostgreSQL do not say what they have: what this process has made counts."`
	MaxDisk   int64     `name:"max-disk" type:"size" min:"1MiB" default:"1GiB" placeholder:"SIZE" help:"What these keys may take there, 1MiB or more, likewise; 0 is no limit."`
	Sequences Sequences `name:"sequences" placeholder:"{PREFIX: {KEY: VALUE}}" example:"\n  im/:\n    ttl: 1h\n  order-:\n    start: 1000\n    max_value: 999999\n    on_max: error" help:"How keys that begin with PREFIX count, as YAML: step, start, max_value (0: none), on_max (reset or error), ttl (how long an unused key is remembered; 0s: for ever), block (values that a daemon takes at a time: faster, with gaps after a crash). The longest prefix wins (default none: 1, 2, 3, ...)."`
}

// Logging are the keys of the log.
type Logging struct {
	LogLevel  string    `name:"log-level" type:"word" enum:"debug,info,warn,error" default:"info" placeholder:"LEVEL" help:"Least severe level that is logged: debug, info, warn or error. SIGHUP changes it."`
	LogFormat LogFormat `name:"log-format" type:"word" enum:"auto,json,console" default:"auto" placeholder:"FORMAT" help:"json, console, or auto: console on a terminal, else json."`
}

// Fallback says which IDs are made without a lease.
type Fallback string

// The kinds of fallback.
const (
	FallbackCachedRandom Fallback = "cached+random"
	FallbackCached       Fallback = "cached"
	FallbackNone         Fallback = none
)

// Layout is a layout's name.
type Layout string

// The layouts that have a name.
const (
	LayoutDefault Layout = snowflake.NameDefault
	LayoutJS      Layout = snowflake.NameJS
)

// SequenceStart says where the sequence of a millisecond begins.
type SequenceStart string

// The ways to begin a millisecond.
const (
	SequenceSpread SequenceStart = "spread"
	SequenceZero   SequenceStart = "zero"
)

// LogFormat is how a log line is written.
type LogFormat string

// The log formats. LogAuto is console on a terminal, else JSON.
const (
	LogAuto    LogFormat = "auto"
	LogJSON    LogFormat = "json"
	LogConsole LogFormat = "console"
)

// Resolve replaces auto with the format for a terminal or for other outputs.
func (f LogFormat) Resolve(terminal bool) LogFormat {
	switch {
	case f != LogAuto:
		return f
	case terminal:
		return LogConsole
	}
	return LogJSON
}
