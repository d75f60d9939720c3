package config

// LeaseServerFlags are the flags of "kazahanad lease-server", as Flags are those
// of "kazahanad serve".
type LeaseServerFlags struct {
	Config Text `name:"config" placeholder:"FILE" help:"YAML file to read; none reads no file (default /etc/kazahana/lease-server.yaml, if present)."`

	Listen      Text   `name:"listen" group:"Listening" placeholder:"ADDRESS" help:"HOST:PORT or unix:PATH of the HTTP API (default 127.0.0.1:7464)."`
	SocketMode  Text   `name:"socket-mode" group:"Listening" placeholder:"MODE" help:"Permissions of a Unix socket, in octal (default 0660)."`
	SocketGroup Text   `name:"socket-group" group:"Listening" placeholder:"GROUP" help:"Group that owns a Unix socket, by name or number (default none: the server's own group)."`
	TLSCert     Text   `name:"tls-cert" group:"Listening" placeholder:"FILE" help:"Certificate chain in PEM form (default none: plain HTTP)."`
	TLSKey      Text   `name:"tls-key" group:"Listening" placeholder:"FILE" help:"Its private key (default none)."`
	ClientCA    Text   `name:"client-ca" group:"Listening" placeholder:"FILE" help:"CA certificates that clients' certificates must chain to (default none: clients need no certificate)."`
	TokensFile  Text   `name:"tokens-file" group:"Listening" placeholder:"FILE" help:"Bearer tokens, one of which each client needs (default none: clients need no token)."`
	Insecure    Switch `name:"insecure" group:"Listening" help:"Allow to listen beyond this host without TLS or without credentials of clients (default false)."`

	StateDir        Text `name:"state-dir" group:"Leases" placeholder:"DIR" help:"Where the default provider's file is (default $STATE_DIRECTORY, else /var/lib/kazahana for root, else $XDG_STATE_HOME/kazahana or ~/.local/state/kazahana)."`
	LiveDir         Text `name:"live-dir" group:"Leases" placeholder:"DIR" help:"Directory on a file system in memory for the watermark that a SQLite file was not restored from a copy; none does without (default as for serve)."`
	Provider        Text `name:"provider" group:"Leases" placeholder:"URL" help:"What keeps the leases, for example sqlite:PATH, redis://HOST:6379/0, etcd://HOST:2379, postgres://HOST/DATABASE (default sqlite:STATE_DIR/leases.db; inside Kubernetes there is no default)."`
	ProviderTimeout Text `name:"provider-timeout" group:"Leases" placeholder:"DURATION" help:"Limit of one call to the provider, 1ms or more (default 3s)."`
	Services        Text `name:"services" group:"Leases" placeholder:"{NAME: {KEY: VALUE}}" help:"Terms of single services, as YAML: epoch, layout, bit_ts, bit_id, bit_seq, term, quarantine, pool, max_leases_per_acquire, ids (default none: those of the provider URL)."`

	Store     Text `name:"store" group:"Locks and sequences" placeholder:"URL" help:"Where locks and sequences live: sqlite:PATH, redis://..., etcd://..., postgres://..., or none (default the provider, or a second file beside a SQLite provider)."`
	MaxKeys   Text `name:"max-keys" group:"Locks and sequences" placeholder:"N" help:"Keys of locks, sequences and placement that the store may have before it takes no new ones, up to 1073741824, of which one tenant makes three quarters at most; 0 is no limit (default 1000000)."`
	MaxDisk   Text `name:"max-disk" group:"Locks and sequences" placeholder:"SIZE" help:"What these keys may take there, 1MiB or more, likewise; 0 is no limit (default 1GiB)."`
	Sequences Text `name:"sequences" group:"Locks and sequences" placeholder:"{PREFIX: {KEY: VALUE}}" help:"How keys that begin with PREFIX count, as YAML: step, start, max_value, on_max, ttl (default none: 1, 2, 3, ...)."`

	MemoryLimit              Text `name:"memory-limit" group:"Limits" placeholder:"SIZE" help:"Memory that the server may use, for example 256MiB: limits of connections and bodies follow from it; 0 is what the control group allows, else 1GiB (default 0)."`
	MaxConnections           Text `name:"max-connections" group:"Limits" placeholder:"N" help:"Connections open at the same time, 1 to 1048576 (default 16384)."`
	MaxConnectionsPerAddress Text `name:"max-connections-per-address" group:"Limits" placeholder:"N" help:"Of these, connections from one address or IPv6 /64, up to 1048576; 0 is three quarters of all (default 0)."`
	MaxInFlight              Text `name:"max-in-flight" group:"Limits" placeholder:"N" help:"Requests under way at the same time, 1 to 1048576 (default 8192)."`
	RateLimit                Text `name:"rate-limit" group:"Limits" placeholder:"N" help:"Requests per second of one client, by credential and address, 0 to 1048576; an acquire counts once for each lease; 0 is unlimited (default 1000)."`
	RateBurst                Text `name:"rate-burst" group:"Limits" placeholder:"N" help:"Requests that one client may send in a burst, 1 to 1048576 (default 5000)."`
	DrainDelay               Text `name:"drain-delay" group:"Limits" placeholder:"DURATION" help:"How long a stopping server goes on serving while /readyz already fails, 0 or more (default 1s)."`
	DrainTimeout             Text `name:"drain-timeout" group:"Limits" placeholder:"DURATION" help:"How long a stop waits for requests under way, 0 or more (default 5s)."`

	LogLevel  Text `name:"log-level" group:"Operation" placeholder:"LEVEL" values:"debug,info,warn,error" help:"debug, info, warn or error (default info)."`
	LogFormat Text `name:"log-format" group:"Operation" placeholder:"FORMAT" values:"auto,json,console" help:"json, console, or auto: console on a terminal, else json (default auto)."`
}

// Help is the text that kong prints below the usage line.
func (*LeaseServerFlags) Help() string {
	return `Every flag is also an environment variable (--rate-limit is ` +
		`KAZAHANA_RATE_LIMIT) and a key of the YAML file (rate_limit). A flag ` +
		`outranks the variable, the variable outranks the file, the file outranks the ` +
		`default. Durations have a unit: 500ms, 5s, 2m.`
}
