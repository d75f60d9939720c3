package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// DefaultLeaseServerFile is the lease server's default configuration file, which
// may be missing.
const DefaultLeaseServerFile = "/etc/kazahana/lease-server.yaml"

// LeaseServer are the settings of "kazahanad lease-server".
// packaging/lease-server.yaml explains the key of each field.
type LeaseServer struct {
	Config string // the file that was read, or ""

	Listen      string // HOST:PORT or unix:PATH
	SocketMode  fs.FileMode
	SocketGroup string // name or number; "" = the server's own
	TLSCert     string
	TLSKey      string
	ClientCA    string // "" = none
	TokensFile  string // "" = none
	Insecure    bool

	StateDir        string
	LiveDir         string // as for the daemon
	Provider        string // may hold a password: show only Redact(Provider)
	ProviderTimeout time.Duration
	Store           string // as Provider; "" = beside the provider, "none" = none
	Sequences       []Sequence

	MaxConnections   int
	MaxInFlight      int
	QuotaConnections int // of one address
	QuotaWaiting     int // requests of one tenant that wait for locks
	RateLimit        int // requests per second and client; 0 = unlimited
	RateBurst        int
	DrainDelay       time.Duration
	DrainTimeout     time.Duration
	LogLevel         LogLevel
	LogFormat        LogFormat

	services map[string]Terms
	origin   map[string]string // where a key was set; missing = default

	livePlaces []string
}

// Terms are the settings of an entry of services. nil stands for the provider URL's
// value.
type Terms struct {
	Epoch      *time.Time
	Layout     *Layout
	BitTS      *int
	BitID      *int
	BitSeq     *int
	Term       *time.Duration
	Quarantine *time.Duration
	Pool       *string
	IDs        *string // LOW-HIGH
	MaxLeases  *int
}

// Services returns the entries of services, by name.
func (s *LeaseServer) Services() map[string]Terms { return maps.Clone(s.services) }

// Cite names a key with the place where it was set.
func (s *LeaseServer) Cite(key string) string {
	if where := s.origin[key]; where != "" {
		return key + " (" + where + ")"
	}
	return key + " (default)"
}

// Load merges the flags with the environment, the file and the defaults, and
// checks the result. The error is one line that says what to change.
func (f *LeaseServerFlags) Load(p Process) (*LeaseServer, error) {
	env := newEnvironment(p.Environ)
	typed := typedValues(f)
	fromEnv, err := env.valuesOf("lease-server", leaseServerKeys, append(foreignVariables, "KAZAHANA_SOCKET"))
	if err != nil {
		return nil, err
	}
	s := &LeaseServer{origin: map[string]string{}}
	fromFile, path, err := p.readConfig(DefaultLeaseServerFile, typed, fromEnv)
	if err != nil {
		return nil, err
	}
	s.Config = path
	into := target{server: s, now: p.Now}
	for _, k := range leaseServerKeys {
		if k.def != "" {
			v := value{key: k.name, name: k.name, where: "the defaults", text: k.def}
			if err := k.set(into, v); err != nil {
				panic("config: the default of a key is refused: " + err.Error())
			}
		}
	}
	// The weakest source first: each later one overwrites it.
	for _, v := range slices.Concat(fromFile, fromEnv, typed) {
		k, known := findIn(leaseServerKeys, v.key)
		if !known {
			return nil, unknownIn("lease-server", leaseServerKeys, v)
		}
		if err := k.set(into, v); err != nil {
			return nil, err
		}
		s.origin[v.key] = v.where
	}
	if s.origin["live_dir"] == "" {
		s.livePlaces = livePlaces(env.lookup, p.UID)
	}
	if err := s.chooseProvider(env.lookup, p.UID); err != nil {
		return nil, err
	}
	return s, s.check()
}

// unknownIn suggests the key that was probably meant.
func unknownIn(command string, keys []key, v value) error {
	hint := "kazahanad " + command + " --help lists the keys"
	if near := nearest(v.name, namesIn(keys, anyKey)); near != "" {
		hint = "did you mean " + near + "?"
	}
	return fmt.Errorf("unknown key %s in %s: %s", quoteName(v.key), v.where, hint)
}

// chooseProvider fills in the default provider: the file that a daemon of this host
// uses by default, so that both grant from one file.
func (s *LeaseServer) chooseProvider(lookup Lookup, uid int) error {
	if s.origin["provider"] != "" {
		return nil
	}
	if _, inside := lookup("KUBERNETES_SERVICE_HOST"); inside {
		return errors.New("provider is not set, and inside Kubernetes there is no default: " +
			"a SQLite file in a pod is lost with it; name one, for example redis://HOST:6379/0, or sqlite:PATH on a persistent volume")
	}
	if s.origin["state_dir"] == "" {
		dir, err := DaemonStateDir(lookup, uid)
		if err != nil {
			return fmt.Errorf("%w; or set provider", err)
		}
		s.StateDir = dir
	}
	if strings.ContainsAny(s.StateDir, "?#%") {
		return fmt.Errorf("%s holds a character that a provider URL cannot: set provider", s.Cite("state_dir"))
	}
	s.Provider = "sqlite:" + s.StateDir + "/leases.db"
	return nil
}

// check refuses settings that contradict each other.
func (s *LeaseServer) check() error {
	if (s.TLSCert == "") != (s.TLSKey == "") {
		return errors.New("tls_cert and tls_key go together: one of them is not set")
	}
	if s.ClientCA != "" && s.TLSCert == "" {
		return fmt.Errorf("%s needs TLS: set tls_cert and tls_key", s.Cite("client_ca"))
	}
	if s.SocketGroup != "" && s.SocketMode&0o020 == 0 {
		return fmt.Errorf("%s is of no use with %s %04o, which does not let a group connect", s.Cite("socket_group"), s.Cite("socket_mode"), s.SocketMode)
	}
	switch scheme(s.Provider) {
	case "static:", "ip:", "none:":
		return fmt.Errorf("%s %s grants the same machine ID to every client, or none: a lease server needs one that coordinates, for example sqlite:PATH or redis://HOST:6379/0",
			s.Cite("provider"), scheme(s.Provider))
	}
	if s.Insecure || onLoopback(s.Listen) {
		return nil
	}
	var missing []string
	if s.TLSCert == "" {
		missing = append(missing, "TLS (tls_cert, tls_key)")
	}
	if s.TokensFile == "" && s.ClientCA == "" {
		missing = append(missing, "a credential of clients (tokens_file or client_ca)")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s %s can be reached from other hosts, and lacks %s: set what is missing, listen on 127.0.0.1 or unix:PATH, or say --insecure if the network itself keeps others out",
			s.Cite("listen"), s.Listen, strings.Join(missing, " and "))
	}
	return nil
}

// onLoopback reports whether only this host can reach the address.
func onLoopback(listen string) bool {
	if strings.HasPrefix(listen, "unix:") {
		return true
	}
	host := listen[:strings.LastIndexByte(listen, ':')]
	if host == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && address.Unmap().IsLoopback()
}

// LiveDirs returns live_dir ("" for none) or, if it is not set, the default places:
// the first that is in memory counts.
func (s *LeaseServer) LiveDirs() (dir string, places []string) { return s.LiveDir, s.livePlaces }
