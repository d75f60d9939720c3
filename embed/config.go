package embed

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
)

// None is the StateDir, the LiveDir or the Store of a program that goes without it.
const None = "none"

// Config says where machine IDs come from and how IDs are made. Only StateDir is
// required. Zero values are the defaults. Each field means what the key of the same name
// means to kazahanad serve (packaging/kazahanad.yaml); KAZAHANA_ variables and
// configuration files have no influence.
type Config struct {
	// StateDir is a directory that only this process uses. It is made if it does not exist,
	// with mode 0700. It keeps what must survive a power failure: the identity, and how far
	// the IDs have come. None goes without: then nothing survives a restart.
	StateDir string

	// LiveDir is where leases and marks survive a kill -9: a directory on a file system in
	// memory, which several processes may share. None goes without. The default is
	// kazahana/live in $XDG_RUNTIME_DIR, /run/kazahana/live for root, or
	// /dev/shm/kazahana-UID.
	LiveDir string

	// Provider is the URL of what grants machine IDs: sqlite:PATH, redis://, rediss://,
	// redis+sentinel://, etcd://, postgres://, kubernetes:, http:// and https:// of a lease
	// server, static:ID, ip:, none: or memory: (for tests). The default is the SQLite file of a
	// daemon that the same user would run on this host (leases.db in /var/lib/kazahana for
	// root, in $XDG_STATE_HOME/kazahana or ~/.local/state/kazahana for others), so that all
	// programs of the user and that daemon use one file. Inside Kubernetes there is no
	// default.
	Provider string

	// ProviderTimeout limits one call of the provider or the store; at least 1 ms,
	// default 3 s. No request for an ID waits for such a call.
	ProviderTimeout time.Duration

	// VerifyInterval is how often the provider is asked whether the leases are still this
	// process's; at least 1 ms, default 10 s, with kubernetes: 5 min.
	VerifyInterval time.Duration

	// Meta is added to the meta of each lease, which operators see; at most 32 entries.
	Meta map[string]string

	// Service is the name under which leases are requested: 1 to 64 of A-Z a-z 0-9 . _ -,
	// default "default". Its state in StateDir has the same name.
	Service string

	// Store is the URL of what keeps sequences. The default is the provider where it can
	// keep them, else a SQLite file, which belongs to the first process that uses it; None
	// goes without.
	Store string

	// Sequences says how the keys with a prefix count. The longest matching prefix counts;
	// other keys count 1, 2, 3, ...
	Sequences map[string]Sequence

	// MaxThroughputPerMS is how many IDs per millisecond to hold leases for, 1 to
	// 1,048,576; default 256, which is one lease of the default layout.
	MaxThroughputPerMS int

	// Fallback says which IDs are made without a lease; default CachedRandom.
	Fallback Fallback

	// SequenceStart is "spread", where the sequence of a millisecond begins at random, or
	// "zero"; default "spread".
	SequenceStart string

	// StartupWait is how long requests wait for the first lease before they get fallback
	// IDs; default 500 ms, negative: not at all.
	StartupWait time.Duration

	// MaxBackward is how far the clock may be behind the last ID: up to that, a request
	// waits, beyond it, it fails with a *ClockBackwardError. Default 5 s, at least 1 ms;
	// negative: requests wait without limit.
	MaxBackward time.Duration

	// AcquireRetryInterval is the wait after the first failure to acquire a lease, which
	// doubles up to AcquireRetryMaxInterval; at least 1 ms, defaults 1 s and 60 s.
	AcquireRetryInterval    time.Duration
	AcquireRetryMaxInterval time.Duration

	// Layout is "default", or "js" for IDs below 2^53.
	Layout string

	// BitTS is the number of timestamp bits while no lease has been seen, 32 to 52; default
	// 41.
	BitTS int

	// DefaultEpoch is where timestamps start while no lease has been seen; default
	// 2026-01-01T00:00:00Z.
	DefaultEpoch time.Time

	// MaxForward is how far the wall clock may jump ahead and still be believed, and
	// ForwardHold how long a larger jump must last; defaults 1 s and 60 s.
	MaxForward  time.Duration
	ForwardHold time.Duration
}

// Fallback says which IDs are made without a lease.
type Fallback string

// The kinds of fallback. Fallback IDs are marked by a bit: no regular ID is equal to one.
const (
	// CachedRandom makes IDs from the slot of the last lease, and random ones where there
	// was none. Two random ones may be equal by chance.
	CachedRandom Fallback = "cached+random"
	// Cached makes IDs from the slot of the last lease only.
	Cached Fallback = "cached"
	// NoFallback makes none: requests fail with a *LeaseAcquisitionError.
	NoFallback Fallback = "none"
)

// Sequence says how keys count. Zero values are the defaults.
type Sequence struct {
	Step     int64         // between two values, at least 1; default 1
	Start    *int64        // the first value, at least 0; default Step
	MaxValue int64         // the greatest value; default 2^63-1
	OnMax    string        // at the maximum: "reset" begins anew, "error" fails; default "reset"
	TTL      time.Duration // a key that is not used for so long begins anew; 0: never
	// Block is how many values a process takes at a time, up to 65,536, for speed: between
	// processes there is no order then, and gaps come. 0: none are taken ahead.
	Block int
}

// settings are those of the daemon that the Config means.
func (c Config) settings() (*config.Serve, error) {
	sequences, err := c.sequences()
	if err != nil {
		return nil, err
	}
	meta, err := flow(c.Meta)
	if err != nil {
		return nil, fmt.Errorf("Config.Meta: %w", err)
	}
	fields := map[string]string{
		"StateDir": c.StateDir, "LiveDir": c.LiveDir, "Provider": c.Provider, "Store": c.Store,
		"ProviderTimeout": duration(c.ProviderTimeout), "VerifyInterval": duration(c.VerifyInterval),
		"Meta": meta, "Service": c.Service, "Sequences": sequences,
		"MaxThroughputPerMS": number(c.MaxThroughputPerMS), "Fallback": string(c.Fallback), "SequenceStart": c.SequenceStart,
		"StartupWait": duration(c.StartupWait), "MaxBackward": duration(c.MaxBackward),
		"AcquireRetryInterval": duration(c.AcquireRetryInterval), "AcquireRetryMaxInterval": duration(c.AcquireRetryMaxInterval),
		"Layout": c.Layout, "BitTS": number(c.BitTS),
		"MaxForward": duration(c.MaxForward), "ForwardHold": duration(c.ForwardHold),
	}
	if c.StartupWait < 0 {
		fields["StartupWait"] = "0s"
	}
	if c.MaxBackward < 0 {
		fields["MaxBackward"] = "-1"
	}
	if !c.DefaultEpoch.IsZero() {
		fields["DefaultEpoch"] = c.DefaultEpoch.UTC().Format(time.RFC3339Nano)
	}
	maps.DeleteFunc(fields, func(_, text string) bool { return text == "" }) // the default
	var s config.Serve
	return &s, s.LoadFields(fields, config.Process{Environ: os.Environ(), UID: os.Geteuid(), Now: time.Now()})
}

func (c Config) sequences() (string, error) {
	type keys struct {
		Step     int64  `json:"step,omitempty"`
		Start    *int64 `json:"start,omitempty"`
		MaxValue int64  `json:"max_value,omitempty"`
		OnMax    string `json:"on_max,omitempty"`
		TTL      string `json:"ttl,omitempty"`
		Block    int    `json:"block,omitempty"`
	}
	all := map[string]keys{}
	for prefix, s := range c.Sequences {
		one := keys{Step: s.Step, Start: s.Start, MaxValue: s.MaxValue, OnMax: s.OnMax, Block: s.Block}
		if s.TTL != 0 {
			one.TTL = s.TTL.String()
		}
		all[prefix] = one
	}
	return flow(all)
}

// flow writes a map as the daemon's configuration has it; "" for an empty one.
func flow[V any](m map[string]V) (string, error) {
	if len(m) == 0 {
		return "", nil
	}
	written, err := json.Marshal(m) // YAML, too
	return string(written), err
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}
