package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"
)

// DefaultLeaseServerFile is the lease server's default configuration file, which
// may be missing.
const DefaultLeaseServerFile = "/etc/kazahana/lease-server.yaml"

// LeaseServer are the settings of "kazahanad lease-server".
// packaging/lease-server.yaml explains the key of each field.
type LeaseServer struct {
	Common

	Listen     string // HOST:PORT or unix:PATH
	TLSCert    string
	TLSKey     string
	ClientCA   string // "" = none
	TokensFile string // "" = none
	Insecure   bool

	MemoryLimit              int64 // bytes; 0 = that of the control group
	MaxConnectionsPerAddress int   // 0 = three quarters of all
	RateLimit                int   // requests per second and client; 0 = unlimited
	RateBurst                int
	DrainDelay               time.Duration

	services map[string]Terms
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

// Load merges the flags with the environment, the file and the defaults, and
// checks the result. The error is one line that says what to change.
func (f *LeaseServerFlags) Load(p Process) (*LeaseServer, error) {
	env := newEnvironment(p.Environ)
	s := &LeaseServer{}
	foreign := append(foreignVariables[:len(foreignVariables):len(foreignVariables)], "KAZAHANA_SOCKET")
	into := target{structs: []any{s}, server: s}
	if err := s.load(p, "lease-server", DefaultLeaseServerFile, leaseServerKeys, foreign, env, typedValues(f), nil, into); err != nil {
		return nil, err
	}
	// The default provider is the file that a daemon of this host uses by default, so
	// that both grant from one file.
	err := s.chooseDirectories(env.lookup, p.UID,
		"a SQLite file in a pod is lost with it; name one, for example redis://HOST:6379/0, or sqlite:PATH on a persistent volume")
	if err != nil && !s.Given("provider") {
		return nil, err
	}
	return s, s.check()
}

// check refuses settings that contradict each other.
func (s *LeaseServer) check() error {
	if (s.TLSCert == "") != (s.TLSKey == "") {
		return errors.New("tls_cert and tls_key go together: one of them is not set")
	}
	if s.ClientCA != "" && s.TLSCert == "" {
		return fmt.Errorf("%s needs TLS: set tls_cert and tls_key", s.Cite("client_ca"))
	}
	if err := s.checkSocketGroup(); err != nil {
		return err
	}
	switch scheme(s.Provider) {
	case "static:", "ip:", "none:":
		return fmt.Errorf("%s %s grants the same machine ID to every client, or none: a lease server needs one that coordinates, for example sqlite:PATH or redis://HOST:6379/0",
			s.Cite("provider"), scheme(s.Provider))
	}
	switch store := cmp.Or(s.Store, s.Provider); scheme(store) {
	case "http:", "https:", "http+unix:":
		return fmt.Errorf("%s: another lease server would keep the locks and sequences of all tenants as those of one: name a store, for example redis://HOST:6379/0, or none",
			s.Cite("store"))
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
