package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// DefaultFile is the default configuration file, which may be missing.
const DefaultFile = "/etc/kazahana/kazahanad.yaml"

// Serve are the settings of "kazahanad serve". packaging/kazahanad.yaml explains the
// key of each field.
type Serve struct {
	Config string // the file that was read, or ""

	Socket string
	// SocketInTmp says that Socket is the last resort below /tmp, where every user
	// can create files: its directory must have mode 0700 and belong to this user.
	SocketInTmp    bool
	SocketMode     fs.FileMode
	SocketGroup    string   // name or number; "" = the daemon's own
	AllowUIDs      []uint32 // with AllowGIDs: who may connect; both empty = every user
	AllowGIDs      []uint32
	MaxConnections int
	MaxInFlight    int
	MemoryLimit    int64 // bytes; 0 = that of the control group
	// What one user may take of each limit; 0 = three quarters.
	MaxConnectionsPerUID int
	MaxInFlightPerUID    int
	MemoryPerUID         int64 // bytes
	EventLoop            bool
	DrainTimeout         time.Duration

	StateDir        string // "" = none
	LiveDir         string // "" = none, or not set: see LiveDirs
	Provider        string // may hold a password: show only Redact(Provider)
	ProviderTimeout time.Duration
	VerifyInterval  time.Duration
	Meta            map[string]string
	DefaultService  string
	Store           string // as Provider; "" = beside the provider, "none" = none
	Sequences       []Sequence

	PlacementAuthority string // HOST:PORT, or PlacementClient; "" = none
	PlacementTTL       time.Duration
	PlacementIdleTTL   time.Duration // 0 = never
	TopologyInterval   time.Duration

	MaxForward  time.Duration
	ForwardHold time.Duration

	AdminListen string // HOST:PORT or unix:PATH; "" = none
	AdminPprof  bool
	LogLevel    LogLevel
	LogFormat   LogFormat

	base      Service            // the top level of the keys that services override
	overrides map[string][]value // by service name
	services  map[string]Service // base and overrides together
	origin    map[string]string  // where a key was set; missing = default

	livePlaces []string
}

// Service are the settings that can differ between services.
type Service struct {
	MaxThroughputPerMS      int
	Fallback                Fallback
	SequenceStart           SequenceStart
	StartupWait             time.Duration
	MaxBackward             time.Duration // negative = wait without limit
	AcquireRetryInterval    time.Duration
	AcquireRetryMaxInterval time.Duration
	Layout                  Layout // LayoutDefault leaves it to BitTS
	BitTS                   int
	DefaultEpoch            time.Time // UTC, whole milliseconds
	ExternalSecretFile      string    // "" = none
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

// LogLevel is the least severe level that is logged.
type LogLevel string

// The log levels.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
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

// Services returns the settings of every service: the default one and those in
// services. A service inherits the top level's value of a key that it does not set.
func (s *Serve) Services() map[string]Service { return maps.Clone(s.services) }

// Process is the environment that settings depend on.
type Process struct {
	Environ []string  // as of os.Environ
	UID     int       // effective user ID
	Now     time.Time // for settings that must not lie in the future; zero = not checked

	// For tests, in place of DefaultFile and of readFile.
	defaultFile string
	readFile    func(path, namedBy string, optional bool) (data []byte, found bool, err error)
}

// Load merges the flags with the environment, the file and the defaults, and
// checks the result. The error is one line that says what to change.
func (f *Flags) Load(p Process) (*Serve, error) {
	env := newEnvironment(p.Environ)
	typed := f.values()
	fromEnv, err := env.values()
	if err != nil {
		return nil, err
	}
	s := &Serve{origin: map[string]string{}}
	fromFile, err := s.readConfig(p, typed, fromEnv)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.def != "" {
			v := value{key: k.name, name: k.name, where: "the defaults", text: k.def}
			if err := k.set(target{serve: s, service: &s.base}, v); err != nil {
				panic("config: the default of a key is refused: " + err.Error())
			}
		}
	}
	into := target{serve: s, service: &s.base, now: p.Now}
	// The weakest source first: each later one overwrites it.
	for _, v := range slices.Concat(fromFile, fromEnv, typed) {
		k, known := findKey(v.key)
		if !known {
			return nil, unknownKey(v, anyKey)
		}
		if err := k.set(into, v); err != nil {
			return nil, err
		}
		s.origin[v.key] = v.where
	}
	if err := s.chooseDirectories(env.lookup, p.UID); err != nil {
		return nil, err
	}
	if err := s.settleLayout(); err != nil {
		return nil, err
	}
	if err := s.resolveServices(p.Now); err != nil {
		return nil, err
	}
	return s, s.check(p.Now)
}

// readConfig finds and reads the file.
func (s *Serve) readConfig(p Process, typed, fromEnv []value) (values []value, err error) {
	values, s.Config, err = p.readConfig(DefaultFile, typed, fromEnv)
	return values, err
}

// readConfig reads the file that the key config names, else the default one if it
// exists. path is "" if none was read.
func (p Process) readConfig(defaultFile string, typed, fromEnv []value) (values []value, path string, err error) {
	path, where, optional := p.defaultFile, "", true
	if path == "" {
		path = defaultFile
	}
	for _, v := range slices.Concat(fromEnv, typed) {
		if v.key != "config" {
			continue
		}
		text, err := v.scalar()
		if err != nil {
			return nil, "", err
		}
		path, where, optional = text, v.where, false
	}
	if path == none && !optional {
		return nil, "", nil
	}
	read := p.readFile
	if read == nil {
		read = readFile
	}
	data, found, err := read(path, where, optional)
	if err != nil || !found {
		return nil, "", err
	}
	root, err := parseFile(path, data)
	if err != nil {
		return nil, path, err
	}
	for _, v := range root.members {
		if v.key == "config" {
			return nil, path, v.errorf("a file cannot name another: use --config or KAZAHANA_CONFIG")
		}
	}
	return root.members, path, nil
}

// chooseDirectories fills in the defaults that depend on the user and the
// environment.
func (s *Serve) chooseDirectories(lookup Lookup, uid int) error {
	if !s.given("socket") {
		s.Socket, s.SocketInTmp = address.Daemon(lookup, uid)
		if _, err := address.Parse(s.Socket); err != nil {
			return fmt.Errorf("the default socket %s %v: set socket", quote(s.Socket), err)
		}
	}
	if !s.given("state_dir") {
		dir, err := DaemonStateDir(lookup, uid)
		if err != nil {
			return err
		}
		s.StateDir = dir
	}
	if !s.given("live_dir") {
		s.livePlaces = livePlaces(lookup, uid)
	}
	if s.given("provider") {
		return nil
	}
	if _, inside := lookup("KUBERNETES_SERVICE_HOST"); inside {
		return errors.New("provider is not set, and inside Kubernetes there is no default: " +
			"a SQLite file in each pod would hand out the same machine IDs in all of them; " +
			"name one, for example static:ID with a number of its own for each pod, or sqlite:PATH if one pod is all there is")
	}
	if s.StateDir == "" {
		return fmt.Errorf("%s leaves the default provider no place for its file: set provider", s.cite("state_dir"))
	}
	if strings.ContainsAny(s.StateDir, "?#%") {
		return fmt.Errorf("%s holds a character that a provider URL cannot: set provider", s.cite("state_dir"))
	}
	s.Provider = "sqlite:" + s.StateDir + "/leases.db"
	return nil
}

// resolveServices applies the overrides, which setServices has checked.
func (s *Serve) resolveServices(now time.Time) error {
	s.services = map[string]Service{s.DefaultService: s.base}
	for name, overrides := range s.overrides {
		service := s.base
		for _, v := range overrides {
			if err := setPerService(target{service: &service, now: now}, v); err != nil {
				return err
			}
		}
		if err := service.settleLayout(overrides); err != nil {
			return fmt.Errorf("services.%s: %w", name, err)
		}
		s.services[name] = service
	}
	return nil
}

// LiveDirs returns live_dir ("" for none) or, if it is not set, the default places:
// the first that is in memory counts.
func (s *Serve) LiveDirs() (dir string, places []string) { return s.LiveDir, s.livePlaces }
