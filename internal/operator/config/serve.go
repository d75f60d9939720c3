package config

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"time"

	"github.com/kazahana/kazahana/internal/address"
)

// Serve are the keys of "kazahanad serve". Each field is a flag, a variable and a key of
// the file; its help is also what the manual page and packaging/kazahanad.yaml say of it.
type Serve struct {
	origins

	Config string `name:"config" type:"path" placeholder:"FILE" help:"YAML file to read; none reads no file (default /etc/kazahana/kazahanad.yaml, if present)."`
	Socket string `name:"socket" type:"socket" group:"Socket" placeholder:"PATH" example:"/run/kazahana/kazahanad.sock" help:"Unix socket to serve, as PATH, unix:PATH or unix:///PATH (default kazahanad.sock in $RUNTIME_DIRECTORY, else in $XDG_RUNTIME_DIR/kazahana, /run/kazahana for root, /tmp/kazahana-UID). Elsewhere, clients need KAZAHANA_SOCKET to find it. With the packaged kazahanad.socket, set path, mode and group there (ListenStream=, SocketMode=, SocketGroup=)."`
	// SocketInTmp says that Socket is the last resort below /tmp, where every user
	// can create files: its directory must have mode 0700 and belong to this user.
	SocketInTmp bool

	Access `group:"Socket"`

	AllowUIDs             []uint32      `name:"allow-uids" type:"ids" group:"Socket" placeholder:"UID,..." example:"[1000, 1001]" help:"Numeric user IDs that may connect, as the kernel reports them (default none: all who can open the socket). A peer must be in one of the two lists if either is set. SIGHUP changes them."`
	AllowGIDs             []uint32      `name:"allow-gids" type:"ids" group:"Socket" placeholder:"GID,..." example:"[1000]" help:"Numeric group IDs that may connect, beside allow-uids (default none)."`
	MaxConnections        int           `name:"max-connections" type:"number" min:"1" max:"1048576" default:"16384" group:"Socket" placeholder:"N" help:"Connections open at the same time, 1 to 1048576; further ones are refused. Each takes an open file."`
	MaxConnectionsPerUser int           `name:"max-connections-per-user" type:"number" max:"1048576" default:"0" group:"Socket" placeholder:"N" help:"Of these, connections of one user or address, up to 1048576; 0 is three quarters of all. One process has half at most."`
	MaxInFlight           int           `name:"max-in-flight" type:"number" min:"1" max:"1048576" default:"8192" group:"Socket" placeholder:"N" help:"Requests that wait at the same time, 1 to 1048576, of which one process has a quarter; further ones are OVERLOADED. Renewals and releases of locks have places of their own."`
	MaxWaiting            int           `name:"max-waiting" type:"number" min:"1" max:"1048576" default:"1024" group:"Socket" placeholder:"N" help:"Of these, requests of one connection, 1 to 1048576."`
	MemoryLimit           int64         `name:"memory-limit" type:"size" min:"16MiB" default:"0" group:"Socket" placeholder:"SIZE" help:"Memory that the daemon may use, for example 256MiB: a quarter of it is for unfinished messages and unread answers, and one for requests that wait; 0 is what the control group allows, else 1GiB."`
	DrainTimeout          time.Duration `name:"drain-timeout" type:"duration" default:"5s" group:"Socket" placeholder:"DURATION" help:"How long a stop waits for requests under way, 0 or more: less than the service manager waits."`

	MemcachedListen string `name:"memcached-listen" type:"address" group:"Without a client" placeholder:"ADDRESS" example:"127.0.0.1:11212" help:"HOST:PORT or unix:PATH (with socket-mode and socket-group) for IDs by memcached's text protocol, get id:COUNTER (default none)."`
	HTTPListen      string `name:"http-listen" type:"address" group:"Without a client" placeholder:"ADDRESS" example:"127.0.0.1:9747" help:"HOST:PORT or unix:PATH (with socket-mode and socket-group) for IDs by HTTP: POST /id, /ids?n=COUNT, /services/NAME/id (default none)."`
	Insecure        bool   `name:"insecure" type:"switch" default:"false" group:"Without a client" help:"Allow memcached-listen and http-listen beyond this host, where any peer can take IDs: there is no password."`

	Leases `group:"Leases"`

	VerifyInterval time.Duration `name:"verify-interval" type:"duration" min:"1ms" default:"10s" group:"Leases" placeholder:"DURATION" help:"How often to ask the provider whether the leases are still this daemon's, 1ms or more; where it is not given with kubernetes:, 5m."`
	Meta           Meta          `name:"meta" group:"Leases" placeholder:"KEY=VALUE,..." example:"\n  rack: r12\n  zone: eu-1a" help:"Text added to the meta of every lease, up to 32 entries (default none). Host, pid, version and service are always there."`

	DefaultService string    `name:"service" type:"service" default:"default" group:"Services" placeholder:"NAME" help:"Service of requests that name none. A service has leases and a stream of ascending IDs of its own; its name is 1 to 64 letters, digits, dots, dashes and underscores."`
	Overrides      Overrides `name:"services" group:"Services" placeholder:"{NAME: {KEY: VALUE}}" example:"\n  orders:\n    max_throughput_per_ms: 1024\n    fallback: none\n  slow: {term: 5m, bit_seq: 10, pool: batch}\n  sessions: {}" help:"Further services and their settings, as YAML: any key of the group IDs, and the terms of leases: epoch, layout, bit_ts, bit_id, bit_seq, term, quarantine, pool, max_leases_per_acquire, ids (default none). They outrank even a flag of the top level, and the provider's URL. A lease server has terms of its own. Services in one pool must agree on epoch and bit_ts."`
	UUIDVersion    int       `name:"uuid-version" type:"number" enum:"4,7" default:"7" group:"Services" placeholder:"VERSION" help:"Version of the UUIDs for requests that name none: 7, which sort by time, or 4, which are random."`

	Records `group:"Locks and sequences"`

	PlacementAuthority string        `name:"placement-authority" type:"authority" group:"Placement (experimental)" placeholder:"HOST:PORT" example:"10.0.0.7:7470" help:"HOST:PORT by which other hosts reach the processes of this host, which actors are placed on; client only resolves; none is off (default none). It needs a store that all of the hosts share."`
	PlacementTTL       time.Duration `name:"placement-ttl" type:"duration" min:"1s" max:"10m" default:"10s" group:"Placement (experimental)" placeholder:"DURATION" help:"Time without a sign of life after which a host's actors may move to other hosts, 1s to 10m; for so long the actors of a dead host are out of reach."`
	PlacementIdleTTL   time.Duration `name:"placement-idle-ttl" type:"duration" default:"0s" group:"Placement (experimental)" placeholder:"DURATION" help:"Time without a resolve after which actors are passivated; 0 is never."`
	TopologyInterval   time.Duration `name:"topology-interval" type:"duration" min:"50ms" default:"1s" group:"Placement (experimental)" placeholder:"DURATION" help:"How often to read the list of hosts, 50ms to half of placement-ttl."`

	// Service is the top level of the keys that services override.
	Service `group:"IDs (each service in services may differ)"`

	MaxForward  time.Duration `name:"max-forward" type:"duration" min:"1ms" default:"1s" group:"Clock" placeholder:"DURATION" help:"How far the wall clock may jump ahead and still be believed, 1ms or more. One wrong reading would date IDs ahead otherwise."`
	ForwardHold time.Duration `name:"forward-hold" type:"duration" default:"60s" group:"Clock" placeholder:"DURATION" help:"How long a larger jump ahead must last to be believed, 0 or more."`

	AdminListen string `name:"admin-listen" type:"address" group:"Operation" placeholder:"ADDRESS" installed:"127.0.0.1:9746" example:"127.0.0.1:9746" help:"HOST:PORT or unix:PATH (with socket-mode and socket-group) for metrics and health, without a password (default none)."`
	AdminPprof  bool   `name:"admin-pprof" type:"switch" default:"false" group:"Operation" help:"Serve /debug/pprof there too."`

	Logging `group:"Operation"`

	services map[string]Service // Service and Overrides together
	terms    ServiceTerms       // of services with terms of their own
}

// Service are the keys that can differ between services.
type Service struct {
	MaxThroughputPerMS      int           `name:"max-throughput-per-ms" type:"number" min:"1" max:"1048576" default:"256" placeholder:"N" help:"IDs per millisecond to hold leases for, 1 to 1048576; 256 is one lease. When all are used up, requests wait for the next millisecond."`
	Fallback                Fallback      `name:"fallback" type:"word" enum:"cached+random,cached,none" default:"cached+random" placeholder:"KIND" help:"IDs made without a valid lease: cached (with the last lease's machine ID), cached+random (random ones if there never was a lease), or none for an error instead. Random ones can collide across hosts."`
	SequenceStart           SequenceStart `name:"sequence-start" type:"word" enum:"spread,zero" default:"spread" placeholder:"KIND" help:"Where the sequence of a millisecond begins: spread (at random, so that the IDs of a quiet service shard evenly) or zero."`
	StartupWait             time.Duration `name:"startup-wait" type:"duration" default:"500ms" placeholder:"DURATION" help:"How long requests wait for the first lease before they get fallback IDs, 0 or more."`
	MaxBackward             time.Duration `name:"max-backward" type:"backward" default:"5s" placeholder:"DURATION" help:"If the clock is behind the last ID by more than this, a request fails instead of waiting; 0 never waits, -1 waits without limit, up to the request's own timeout."`
	AcquireRetryInterval    time.Duration `name:"acquire-retry-interval" type:"duration" min:"1ms" default:"1s" placeholder:"DURATION" help:"Wait after the first failure to acquire a lease, 1ms or more; it doubles from there."`
	AcquireRetryMaxInterval time.Duration `name:"acquire-retry-max-interval" type:"duration" min:"1ms" default:"60s" placeholder:"DURATION" help:"Longest wait between attempts to acquire a lease, 1ms or more."`
	Layout                  Layout        `name:"layout" type:"word" enum:"default,js" default:"default" placeholder:"NAME" help:"Layout of the IDs: default, or js for IDs below 2^53, which a JavaScript number holds. A provider whose URL is given needs ?layout=js in it too. Choose before the first ID."`
	BitTS                   int           `name:"bit-ts" type:"number" min:"32" max:"52" default:"41" placeholder:"BITS" help:"Bits of the timestamp while no lease has been seen, 32 to 52, as in the provider's leases; 41 last 69 years. Never change it once there are IDs."`
	DefaultEpoch            time.Time     `name:"default-epoch" type:"epoch" default:"2026-01-01T00:00:00Z" placeholder:"TIME" help:"Where timestamps start while no lease has been seen, RFC 3339."`
	ExternalSecretFile      string        `name:"external-secret-file" type:"text" placeholder:"FILE" example:"/etc/kazahana/external-secret" help:"File with the secret that encrypts external IDs, read at the start (default none: they are scrambled without one). After a change, published IDs cannot be decoded."`
}

// Services returns the settings of every service: the default one and those in
// services. A service inherits the top level's value of a key that it does not set.
func (s *Serve) Services() map[string]Service { return maps.Clone(s.services) }

// Terms returns the terms of services that have some of their own, as parameters of the
// provider's URL, by the service's name.
func (s *Serve) Terms() map[string]url.Values { return s.terms.params() }

// DefaultTerms is the default service where every service has terms of its own, so that none has
// those of the provider's URL; else "".
func (s *Serve) DefaultTerms() string {
	if len(s.terms) < len(s.services) {
		return ""
	}
	return s.DefaultService
}

// CiteTerms names a service of Terms with the place where it is set: "services.slow (FILE line 3)".
func (s *Serve) CiteTerms(service string) string { return s.terms[service].cited }

// Help is the text below the usage line.
func (*Serve) Help() string { return sourcesHelp("max-backward") }

// Load reads the command line of grammar, which is s or holds s, with the environment, the
// file and the defaults, and checks the result. The error is one line that says what to
// change. s must be new: Load does not forget old values.
func (s *Serve) Load(grammar any, args []string, p Process) error {
	env, err := p.parse(grammar, args, s, &s.origins)
	if err != nil {
		return err
	}
	return s.settle(p, env)
}

// LoadFields is Load for a program with package embed: the keys come from the fields of its
// Config, by the name of the field of Serve. Neither a file nor KAZAHANA_ variables are read,
// there is no socket and no default state directory, and errors cite the fields.
func (s *Serve) LoadFields(fields map[string]string, p Process) error {
	p.library, p.fields = true, fields
	return s.Load(s, nil, p)
}

// LoadDirectories sets the state directory, "" for none, and the live directory, "" if none
// is set. Other settings are not looked at: faults in them do not keep anyone from the
// state.
func (s *Serve) LoadDirectories(args []string, p Process) error {
	p.Only = []string{"state_dir", "live_dir"}
	env, err := p.parse(s, args, s, &s.origins)
	if err != nil {
		return err
	}
	return s.chooseStateDir(env.lookup, p.UID, s.origins)
}

// settle fills in what depends on other settings or on the process.
func (s *Serve) settle(p Process, env *environment) error {
	if !p.library && !s.Given("socket") {
		s.Socket, s.SocketInTmp = address.Daemon(env.lookup, p.UID)
		if _, err := address.Parse(s.Socket); err != nil {
			return fmt.Errorf("the default socket %s %v: set socket", quote(s.Socket), err)
		}
	}
	choose := s.chooseDirectories
	if p.library {
		choose = s.chooseBesideDaemon
	}
	if err := choose(env.lookup, p.UID, s.origins, inPod); err != nil {
		return err
	}
	if !s.Given("verify_interval") && scheme(s.Provider) == "kubernetes:" {
		s.VerifyInterval = verifyKubernetes
	}
	if err := s.settleLayout(); err != nil {
		return err
	}
	if own := env.outranked["provider"]; len(p.Only) > 0 && !TakesTerms(own) {
		s.Overrides = nil // the daemon has another provider, for which they are no terms
	}
	if err := s.resolveServices(); err != nil {
		return err
	}
	if len(p.Only) > 0 { // keys that contradict these may be among the ignored ones
		return s.checkTerms(p.Now)
	}
	return s.check(p.Now)
}

// inPod says why there is no default provider inside Kubernetes.
const inPod = "a SQLite file in each pod would hand out the same machine IDs in all of them; " +
	"name one, for example kubernetes:, which needs a Role for the pod's ServiceAccount with the rule " +
	`{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get", "list", "create", "update"]}, ` +
	"or sqlite:PATH if one pod is all there is"

// verifyKubernetes is the default of verify_interval with the provider kubernetes: the API server
// serves a whole cluster.
const verifyKubernetes = 5 * time.Minute

// Access are the keys of who may connect to a socket.
type Access struct {
	SocketMode  fs.FileMode `name:"socket-mode" type:"mode" default:"0660" placeholder:"MODE" help:"Permissions of a Unix socket, in octal: 0660 lets in its owner and its group, 0666 every user."`
	SocketGroup string      `name:"socket-group" type:"text" placeholder:"GROUP" example:"kazahana" help:"Group that owns a Unix socket, by name or number (default none: the process's own group)."`
}
