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

// Common are the settings that the daemon and the lease server share.
type Common struct {
	Config string // the file that was read, or ""

	SocketMode      fs.FileMode
	SocketGroup     string // name or number; "" = the process's own
	MaxConnections  int
	MaxInFlight     int
	DrainTimeout    time.Duration
	StateDir        string // "" = none
	LiveDir         string // "" = none, or not set: see LiveDirs
	Provider        string // may hold a password: show only Redact(Provider)
	ProviderTimeout time.Duration
	Store           string // as Provider; "" = beside the provider, "none" = none
	MaxKeys         int    // of locks, sequences and placement in the store; 0 = no limit
	MaxDisk         int64  // bytes that they may take; 0 = no limit
	Sequences       []Sequence
	LogLevel        LogLevel
	LogFormat       LogFormat

	origin     map[string]string // where a key was set; missing = default
	livePlaces []string
}

// LiveDirs returns live_dir ("" for none) or, if it is not set, the default places:
// the first that is in memory counts.
func (c *Common) LiveDirs() (dir string, places []string) { return c.LiveDir, c.livePlaces }

// Given reports whether any source sets the key.
func (c *Common) Given(key string) bool { return c.origin[key] != "" }

// Cite names a key with the place where it was set: "fallback (FILE line 3)".
func (c *Common) Cite(key string) string {
	if where := c.origin[key]; where != "" {
		return key + " (" + where + ")"
	}
	return key + " (default)"
}

// Serve are the settings of "kazahanad serve". packaging/kazahanad.yaml explains the
// key of each field.
type Serve struct {
	Common

	Socket string
	// SocketInTmp says that Socket is the last resort below /tmp, where every user
	// can create files: its directory must have mode 0700 and belong to this user.
	SocketInTmp           bool
	AllowUIDs             []uint32 // with AllowGIDs: who may connect; both empty = every user
	AllowGIDs             []uint32
	MemoryLimit           int64 // bytes; 0 = that of the control group
	MaxConnectionsPerUser int   // 0 = three quarters
	MaxWaiting            int   // requests of one connection
	EventLoop             bool

	VerifyInterval time.Duration
	Meta           map[string]string
	DefaultService string
	UUIDVersion    int // 4 or 7, of UUIDs for requests that name none

	PlacementAuthority string // HOST:PORT, or PlacementClient; "" = none
	PlacementTTL       time.Duration
	PlacementIdleTTL   time.Duration // 0 = never
	TopologyInterval   time.Duration

	MaxForward  time.Duration
	ForwardHold time.Duration

	// Further ways to ask for IDs: HOST:PORT or unix:PATH; "" = none.
	MemcachedListen string
	HTTPListen      string
	Insecure        bool

	AdminListen string // HOST:PORT or unix:PATH; "" = none
	AdminPprof  bool

	base      Service            // the top level of the keys that services override
	overrides map[string][]value // by service name
	services  map[string]Service // base and overrides together
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
	// Library says that the settings are those of a program with package embed: neither
	// a file nor KAZAHANA_ variables are read, there is no socket and no default state
	// directory, and errors cite the fields of embed.Config.
	Library bool

	// For tests, in place of DefaultFile and of readFile.
	defaultFile string
	readFile    func(path, namedBy string, optional bool) (data []byte, found bool, err error)
}

// Load merges the flags with the environment, the file and the defaults, and
// checks the result. The error is one line that says what to change.
func (f *Flags) Load(p Process) (*Serve, error) {
	s, env, err := f.merge(p, nil)
	if err != nil {
		return nil, err
	}
	if !p.Library && !s.Given("socket") {
		s.Socket, s.SocketInTmp = address.Daemon(env.lookup, p.UID)
		if _, err := address.Parse(s.Socket); err != nil {
			return nil, fmt.Errorf("the default socket %s %v: set socket", quote(s.Socket), err)
		}
	}
	if err := s.choosePlaces(env.lookup, p); err != nil {
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

func (s *Serve) choosePlaces(lookup Lookup, p Process) error {
	if p.Library {
		return s.chooseBesideDaemon(lookup, p.UID)
	}
	return s.chooseDirectories(lookup, p.UID, inPod)
}

// merge merges the flags with the environment, the file and the defaults that depend on
// nothing. It leaves out all keys but those in only, if there are any.
func (f *Flags) merge(p Process, only []string) (*Serve, *environment, error) {
	env := newEnvironment(p.Environ)
	s := &Serve{}
	into := target{structs: []any{s, &s.base}, serve: s}
	typed := typedValues(f)
	if p.Library {
		cite(typed)
	}
	return s, env, s.load(p, "serve", DefaultFile, keys, foreignVariables, env, typed, only, into)
}

// Directories returns the state directory, "" for none, and the live directory, "" if none
// is set. Other settings are not looked at: what is wrong with them does not keep anybody
// from the state.
func (f *Flags) Directories(p Process) (stateDir, liveDir string, err error) {
	s, env, err := f.merge(p, []string{"config", "state_dir", "live_dir"})
	if err != nil {
		return "", "", err
	}
	err = s.chooseStateDir(env.lookup, p.UID)
	return s.StateDir, s.LiveDir, err
}

// inPod says why there is no default provider inside Kubernetes.
const inPod = "a SQLite file in each pod would hand out the same machine IDs in all of them; " +
	"name one, for example static:ID with a number of its own for each pod, or sqlite:PATH if one pod is all there is"

// load reads all sources, the weakest first: each later one overwrites it.
func (c *Common) load(p Process, command, file string, keys []key, foreign []string, env *environment, typed []value, only []string, into target) error {
	var fromEnv, fromFile []value
	var err error
	if !p.Library {
		if fromEnv, err = env.values(command, keys, foreign); err != nil {
			return err
		}
		if fromFile, c.Config, err = p.readConfig(file, typed, fromEnv); err != nil {
			return err
		}
	}
	var defaults []value
	for _, k := range keys {
		if k.def != "" {
			defaults = append(defaults, value{key: k.name, name: k.name, where: "the defaults", text: k.def})
		}
	}
	if err := setAll(command, keys, defaults, into); err != nil {
		panic("config: the default of a key is refused: " + err.Error())
	}
	given := slices.DeleteFunc(slices.Concat(fromFile, fromEnv, typed), func(v value) bool {
		return len(only) > 0 && !slices.Contains(only, v.key)
	})
	c.origin = map[string]string{}
	for _, v := range given {
		c.origin[v.key] = v.where
	}
	into.now = p.Now
	return setAll(command, keys, given, into)
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
// environment. inPod says why there is no default provider inside Kubernetes.
func (c *Common) chooseDirectories(lookup Lookup, uid int, inPod string) error {
	if !c.Given("live_dir") {
		c.livePlaces = livePlaces(lookup, uid)
	}
	if err := c.chooseStateDir(lookup, uid); err != nil {
		return err
	}
	if c.Given("provider") {
		return nil
	}
	if err := noDefaultInPod(lookup, inPod); err != nil {
		return err
	}
	if c.StateDir == "" {
		return fmt.Errorf("%s leaves the default provider no place for its file: set provider", c.Cite("state_dir"))
	}
	return c.defaultProvider(c.StateDir, c.Cite("state_dir"))
}

func (c *Common) chooseStateDir(lookup Lookup, uid int) (err error) {
	if !c.Given("state_dir") {
		c.StateDir, err = daemonStateDir(lookup, uid)
	}
	return err
}

func noDefaultInPod(lookup Lookup, why string) error {
	if _, inside := lookup("KUBERNETES_SERVICE_HOST"); inside {
		return errors.New("provider is not set, and inside Kubernetes there is no default: " + why)
	}
	return nil
}

// defaultProvider is a SQLite file in the directory, which the error calls what.
func (c *Common) defaultProvider(dir, what string) error {
	if strings.ContainsAny(dir, "?#%") {
		return fmt.Errorf("%s holds a character that a provider URL cannot: set provider", what)
	}
	c.Provider = "sqlite:" + dir + "/leases.db"
	return nil
}

// chooseBesideDaemon is chooseDirectories for a program with package embed. The program
// names a state directory of its own. Its default provider is the file of a daemon that
// the same user would run, so that all programs of the user on this host, and that
// daemon, take their machine IDs from one file.
func (c *Common) chooseBesideDaemon(lookup Lookup, uid int) error {
	if !c.Given("live_dir") {
		c.livePlaces = livePlaces(lookup, uid)
	}
	if !c.Given("state_dir") {
		return errors.New("Config.StateDir is not set: name a directory that only this process uses, or write none to keep no state")
	}
	if c.Given("provider") {
		return nil
	}
	if err := noDefaultInPod(lookup, inPod); err != nil {
		return err
	}
	dir, err := userStateDir(lookup, uid)
	if err != nil {
		return fmt.Errorf("Config.Provider is not set, and %w: set Provider", err)
	}
	return c.defaultProvider(dir, dir)
}

// resolveServices applies the overrides, which setServices has checked.
func (s *Serve) resolveServices(now time.Time) error {
	s.services = map[string]Service{s.DefaultService: s.base}
	for name, overrides := range s.overrides {
		service := s.base
		if err := setOverrides(&service, overrides, now); err != nil {
			return err
		}
		if err := service.settleLayout(overrides); err != nil {
			return fmt.Errorf("services.%s: %w", name, err)
		}
		s.services[name] = service
	}
	return nil
}
