package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// LeaseServer are the keys of "kazahanad lease-server", as Serve has those of the daemon.
// packaging/lease-server.yaml is made of them.
type LeaseServer struct {
	origins

	Config string `name:"config" type:"path" placeholder:"FILE" help:"YAML file to read; none reads no file (default /etc/kazahana/lease-server.yaml, if present)."`
	Listen string `name:"listen" type:"address" default:"127.0.0.1:7464" example:"127.0.0.1:7464" group:"Listening" placeholder:"ADDRESS" help:"HOST:PORT or unix:PATH of the HTTP API. Beyond this host it needs TLS and credentials of clients, or insecure."`

	Access `group:"Listening"`

	TLSCert    string `name:"tls-cert" type:"text" group:"Listening" placeholder:"FILE" example:"/etc/kazahana/server.pem" help:"Certificate chain in PEM form (default none: plain HTTP). It is read again when it changes, and at SIGHUP, as the key, client-ca and tokens-file are."`
	TLSKey     string `name:"tls-key" type:"text" group:"Listening" placeholder:"FILE" example:"/etc/kazahana/server.key" help:"Its private key (default none)."`
	ClientCA   string `name:"client-ca" type:"text" group:"Listening" placeholder:"FILE" example:"/etc/kazahana/clients-ca.pem" help:"CA certificates that clients' certificates must chain to (default none: clients need no certificate). The subject is the owner of the client's leases and locks, unless the client has a token too."`
	TokensFile string `name:"tokens-file" type:"text" group:"Listening" placeholder:"FILE" example:"/etc/kazahana/tokens.yaml" help:"YAML list of bearer tokens, one of which each client needs: {token or token_sha256, tenant, owner, scopes}, with scopes of leases, run, locks, sequences, placements, admin (default none: clients need no token)."`
	Insecure   bool   `name:"insecure" type:"switch" default:"false" group:"Listening" help:"Allow to listen beyond this host without TLS or without credentials of clients: any host that reaches the address can take every machine ID."`

	Leases `group:"Leases"`

	ServiceTerms ServiceTerms `name:"services" group:"Leases" placeholder:"{NAME: {KEY: VALUE}}" example:"\n  orders:\n    epoch: 2026-01-01T00:00:00Z\n    bit_ts: 41\n    bit_id: 12\n    bit_seq: 10\n    term: 10m\n    quarantine: 10m\n    pool: orders\n    max_leases_per_acquire: 16\n    ids: 0-1023\n  acme/orders: {pool: acme}\n  web: {pool: web, layout: js}" help:"Terms of single services, as YAML: epoch, layout, bit_ts, bit_id, bit_seq, term, quarantine, pool, max_leases_per_acquire, ids (default none: those of the provider URL). A service of another tenant than default is TENANT/SERVICE, and must be here to be served. Services in one pool must agree on epoch and bit_ts."`

	Records `group:"Locks and sequences"`

	MemoryLimit              int64         `name:"memory-limit" type:"size" min:"16MiB" default:"0" group:"Limits" placeholder:"SIZE" help:"Memory that the server may use, for example 256MiB: five eighths are for connections, 40KiB each, and one is for bodies; the limits below follow from it. 0 is what the control group allows, else 1GiB."`
	MaxConnections           int           `name:"max-connections" type:"number" min:"1" max:"1048576" default:"16384" group:"Limits" placeholder:"N" help:"Connections open at the same time, 1 to 1048576; further ones are closed. Each takes an open file."`
	MaxConnectionsPerAddress int           `name:"max-connections-per-address" type:"number" max:"1048576" default:"0" group:"Limits" placeholder:"N" help:"Of these, connections from one address or IPv6 /64, up to 1048576; 0 is three quarters of all. Hosts behind one proxy have one address."`
	MaxInFlight              int           `name:"max-in-flight" type:"number" min:"1" max:"1048576" default:"8192" group:"Limits" placeholder:"N" help:"Requests under way at the same time, 1 to 1048576; further ones are answered 503 OVERLOADED."`
	RateLimit                int           `name:"rate-limit" type:"number" max:"1048576" default:"1000" group:"Limits" placeholder:"N" help:"Requests per second of one client, by credential and address, 0 to 1048576, beyond which it gets 429; an acquire counts once for each lease; 0 is unlimited."`
	RateBurst                int           `name:"rate-burst" type:"number" min:"1" max:"1048576" default:"5000" group:"Limits" placeholder:"N" help:"Requests that one client may send in a burst, 1 to 1048576."`
	DrainDelay               time.Duration `name:"drain-delay" type:"duration" default:"1s" group:"Limits" placeholder:"DURATION" help:"How long a stopping server goes on serving while /readyz already fails, 0 or more."`
	DrainTimeout             time.Duration `name:"drain-timeout" type:"duration" default:"5s" group:"Limits" placeholder:"DURATION" help:"How long a stop waits for requests under way, 0 or more."`

	Logging `group:"Operation"`
}

// Services returns the entries of services, by name.
func (s *LeaseServer) Services() map[string]Terms { return maps.Clone(s.ServiceTerms) }

// Terms is Serve.Terms for the lease server.
func (s *LeaseServer) Terms() map[string]url.Values { return s.ServiceTerms.params() }

// DefaultTerms is "": clients can name services that are none of Services, and have the URL's terms.
func (s *LeaseServer) DefaultTerms() string { return "" }

// CiteTerms is Serve.CiteTerms for the lease server.
func (s *LeaseServer) CiteTerms(service string) string { return s.ServiceTerms[service].cited }

// Help is the text below the usage line.
func (*LeaseServer) Help() string { return sourcesHelp("rate-limit") }

// Load is Serve.Load for the lease server.
func (s *LeaseServer) Load(grammar any, args []string, p Process) error {
	env, err := p.parse(grammar, args, s, &s.origins)
	if err != nil {
		return err
	}
	// The default provider is the file that a daemon of this host uses by default, so
	// that both grant from one file.
	err = s.chooseDirectories(env.lookup, p.UID, s.origins,
		"a SQLite file in a pod is lost with it; name one, for example redis://HOST:6379/0, or sqlite:PATH on a persistent volume")
	if err != nil && !s.Given("provider") {
		return err
	}
	return s.check(p.Now)
}

// check refuses settings that contradict each other.
func (s *LeaseServer) check(now time.Time) error {
	if (s.TLSCert == "") != (s.TLSKey == "") {
		return errors.New("tls_cert and tls_key go together: one of them is not set")
	}
	if s.ClientCA != "" && s.TLSCert == "" {
		return fmt.Errorf("%s needs TLS: set tls_cert and tls_key", s.Cite("client_ca"))
	}
	if err := s.checkGroup(s.origins); err != nil {
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
	for _, name := range slices.Sorted(maps.Keys(s.ServiceTerms)) {
		if err := checkEpoch("services."+name+".epoch", s.ServiceTerms[name].Epoch, now); err != nil {
			return err
		}
	}
	return s.checkReach()
}

// checkReach refuses to be reached from other hosts without TLS and credentials.
func (s *LeaseServer) checkReach() error {
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
