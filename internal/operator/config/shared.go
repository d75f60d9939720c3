package config

import (
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Leases are the keys of where leases come from and what outlives the process.
type Leases struct {
	// Directory of the durable local state: a daemon's identity, and the floor below
	// which no ID is made again; the files of the default provider and store.
	// Default: $STATE_DIRECTORY (under systemd), else /var/lib/kazahana for root,
	// else $XDG_STATE_HOME/kazahana or ~/.local/state/kazahana. The word none keeps
	// nothing, which needs a provider and gives up order across restarts.
	StateDir string `name:"state-dir" type:"text" placeholder:"DIR" example:"/var/lib/kazahana" help:"Durable local state; none keeps nothing, and needs --provider (default $STATE_DIRECTORY, else /var/lib/kazahana for root, else $XDG_STATE_HOME/kazahana or ~/.local/state/kazahana)."`

	// Where leases and marks survive a kill -9, and what tells that a SQLite file
	// was put back: a directory on a file system in memory (tmpfs), which no backup
	// program copies. Default: the entry of $RUNTIME_DIRECTORY (set by systemd) that
	// ends in -live, else $XDG_RUNTIME_DIR/kazahana/live, /run/kazahana/live for
	// root, /dev/shm/kazahana-UID: the first that is in memory. With the word none
	// no lease is adopted after a crash, and a frozen disk stops the IDs.
	LiveDir string `name:"live-dir" type:"text" placeholder:"DIR" example:"/run/kazahana-live" help:"Where leases and marks survive a kill -9: a directory on a file system in memory; none does without (default the entry of $RUNTIME_DIRECTORY that ends in -live, else $XDG_RUNTIME_DIR/kazahana/live, /run/kazahana/live for root, /dev/shm/kazahana-UID: the first that is in memory)."`

	// What grants machine IDs, as a URL: sqlite:PATH for one host; for many hosts
	// redis://HOST:6379/0, etcd://HOST:2379, postgres://HOST/DATABASE, or
	// https://HOST:7464 of a lease server; for the pods of a cluster "kubernetes:";
	// static:ID, "ip:", "none:" (YAML needs the quotes after a last colon). Its
	// parameters (?term=10m&bit_seq=8) are the terms of the leases. Default: a
	// SQLite file in state_dir, which makes IDs unique on this host. Hosts with
	// files of their own make the same IDs, unless each has its own range of machine
	// IDs (?ids=LOW-HIGH). Inside Kubernetes there is no default. A lease server
	// needs one that coordinates.
	Provider string `name:"provider" type:"provider" placeholder:"URL" example:"sqlite:/var/lib/kazahana/leases.db" help:"What grants machine IDs, for example sqlite:PATH for one host; kubernetes: for the pods of a cluster; redis://, etcd://, postgres:// or a lease server's https:// for many hosts; static:ID, none: (default sqlite:STATE_DIR/leases.db; inside Kubernetes there is no default)."`

	// Limit of one call to the provider, 1ms or more. Requests for IDs never wait
	// for such a call; a longer limit only delays the next attempt.
	ProviderTimeout time.Duration `name:"provider-timeout" type:"duration" min:"1ms" default:"3s" placeholder:"DURATION" help:"Limit of one call to the provider, 1ms or more."`

	livePlaces []string
}

// LiveDirs returns live_dir ("" for none) or, if it is not set, the default places:
// the first that is in memory counts.
func (l *Leases) LiveDirs() (dir string, places []string) { return l.LiveDir, l.livePlaces }

// Records are the keys of locks, sequences and placement.
type Records struct {
	// Where locks and sequences live: sqlite:PATH for one process; for many hosts
	// redis://HOST:6379/0, etcd://HOST:2379, postgres://HOST/DATABASE, or, for a
	// daemon, http(s)://HOST:7464 of a lease server. Default: the provider if it can
	// keep them, else the file store.db in state_dir; with "kubernetes:" there is
	// none. The word none turns locks and sequences off. They do not move with the
	// provider: before you change it, name its store here, as in
	// docs/changing-providers.md.
	Store string `name:"store" type:"store" placeholder:"URL" example:"sqlite:/var/lib/kazahana/store.db" help:"Where locks and sequences live: sqlite:PATH, redis://..., etcd://..., postgres://..., http(s)://... of a lease server, or none (default the provider if it can keep them, else a SQLite file in the state directory; with kubernetes: none)."`

	// Keys of locks, sequences and placement in the store, and the bytes that they
	// may take (1MiB or more); 0 is no limit. Beyond it there are no new keys, and
	// existing ones can always be used. One user, or one tenant of a lease server,
	// makes three quarters at most. A lease server as the store has limits of its
	// own, which count instead. Redis, etcd and PostgreSQL do not say what they
	// have: there, what this process has made since its start counts. On a small
	// disk, make max_disk small.
	MaxKeys int   `name:"max-keys" type:"number" max:"1073741824" default:"1000000" placeholder:"N" help:"Keys of locks, sequences and placement that the store may have before it takes no new ones, up to 1073741824, of which one user or tenant makes three quarters at most; 0 is no limit."`
	MaxDisk int64 `name:"max-disk" type:"size" min:"1MiB" default:"1GiB" placeholder:"SIZE" help:"What these keys may take there, 1MiB or more, likewise; 0 is no limit."`

	// How keys that begin with a prefix count; the longest prefix wins. step is the
	// distance between two values, start the first value (default: the step),
	// max_value the greatest (0: no limit), on_max what happens after it (reset or
	// error), ttl how long an unused key is remembered (0s: for ever), block how
	// many values a daemon takes at a time, which is faster and leaves gaps after a
	// crash. Default: none, every key counts 1, 2, 3, ...
	Sequences Sequences `name:"sequences" placeholder:"{PREFIX: {KEY: VALUE}}" example:"\n  im/:\n    ttl: 1h\n  order-:\n    start: 1000\n    max_value: 999999\n    on_max: error" help:"How keys that begin with PREFIX count, as YAML: step, start, max_value, on_max, ttl, block (default none: 1, 2, 3, ...)."`
}

// Logging are the keys of the log.
type Logging struct {
	// Least severe level that is logged: debug, info, warn or error. It can be
	// changed by SIGHUP.
	LogLevel string `name:"log-level" type:"word" enum:"debug,info,warn,error" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error."`

	// How a line is logged: json, console, or auto, which is console on a terminal
	// and json elsewhere.
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
