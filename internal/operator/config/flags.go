package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// Flags are the flags of "kazahanad serve", embedded in its kong command. They only
// keep the typed text; Load makes settings of it.
type Flags struct {
	Config Text `name:"config" placeholder:"FILE" help:"YAML file to read; none reads no file (default /etc/kazahana/kazahanad.yaml, if present)."`

	Socket         Text   `name:"socket" group:"Socket" placeholder:"PATH" help:"Unix socket to serve, as PATH, unix:PATH or unix:///PATH (default kazahanad.sock in $RUNTIME_DIRECTORY, else in $XDG_RUNTIME_DIR/kazahana, /run/kazahana for root, /tmp/kazahana-UID)."`
	SocketMode     Text   `name:"socket-mode" group:"Socket" placeholder:"MODE" help:"Permissions of the socket, in octal (default 0660)."`
	SocketGroup    Text   `name:"socket-group" group:"Socket" placeholder:"GROUP" help:"Group that owns the socket, by name or number (default none: the daemon's own group)."`
	AllowUIDs      Text   `name:"allow-uids" group:"Socket" placeholder:"UID,..." help:"Numeric user IDs that may connect (default none: all who can open the socket)."`
	AllowGIDs      Text   `name:"allow-gids" group:"Socket" placeholder:"GID,..." help:"Numeric group IDs that may connect, beside allow-uids (default none)."`
	MaxConnections Text   `name:"max-connections" group:"Socket" placeholder:"N" help:"Connections open at the same time, 1 to 1048576 (default 16384)."`
	MaxPerUser     Text   `name:"max-connections-per-user" group:"Socket" placeholder:"N" help:"Of these, connections of one user or address, up to 1048576; 0 is three quarters of all (default 0)."`
	MaxInFlight    Text   `name:"max-in-flight" group:"Socket" placeholder:"N" help:"Requests that wait at the same time, 1 to 1048576; one process has a quarter of them (default 8192)."`
	MaxWaiting     Text   `name:"max-waiting" group:"Socket" placeholder:"N" help:"Of these, requests of one connection, 1 to 1048576 (default 1024)."`
	MemoryLimit    Text   `name:"memory-limit" group:"Socket" placeholder:"SIZE" help:"Memory that the daemon may use, for example 256MiB: a quarter of it is for unfinished messages and unread answers, and one for requests that wait; 0 is what the control group allows, else 1GiB (default 0)."`
	EventLoop      Switch `name:"event-loop" group:"Socket" help:"On Linux, serve the socket by one event loop, which is faster than a goroutine for each connection (default true)."`
	DrainTimeout   Text   `name:"drain-timeout" group:"Socket" placeholder:"DURATION" help:"How long a stop waits for requests under way, 0 or more (default 5s)."`

	MemcachedListen Text   `name:"memcached-listen" group:"Without a client" placeholder:"ADDRESS" help:"HOST:PORT or unix:PATH (with socket-mode and socket-group) for IDs by memcached's text protocol, get id:COUNTER (default none)."`
	HTTPListen      Text   `name:"http-listen" group:"Without a client" placeholder:"ADDRESS" help:"HOST:PORT or unix:PATH (with socket-mode and socket-group) for IDs by HTTP: POST /id, /ids?n=COUNT, /services/NAME/id (default none)."`
	Insecure        Switch `name:"insecure" group:"Without a client" help:"Allow memcached-listen and http-listen beyond this host, where any peer can take IDs (default false)."`

	StateDir        Text `name:"state-dir" group:"Leases" placeholder:"DIR" help:"Durable local state; none keeps nothing, and needs --provider (default $STATE_DIRECTORY, else /var/lib/kazahana for root, else $XDG_STATE_HOME/kazahana or ~/.local/state/kazahana)."`
	LiveDir         Text `name:"live-dir" group:"Leases" placeholder:"DIR" help:"Where leases and marks survive a kill -9: a directory on a file system in memory; none does without (default the entry of $RUNTIME_DIRECTORY that ends in -live, else $XDG_RUNTIME_DIR/kazahana/live, /run/kazahana/live for root, /dev/shm/kazahana-UID: the first that is in memory)."`
	Provider        Text `name:"provider" group:"Leases" placeholder:"URL" help:"What grants machine IDs, for example sqlite:PATH for one host; redis://, etcd://, postgres:// or a lease server's https:// for many; static:ID, none: (default sqlite:STATE_DIR/leases.db; inside Kubernetes there is no default)."`
	ProviderTimeout Text `name:"provider-timeout" group:"Leases" placeholder:"DURATION" help:"Limit of one call to the provider, 1ms or more (default 3s)."`
	VerifyInterval  Text `name:"verify-interval" group:"Leases" placeholder:"DURATION" help:"How often to ask the provider whether the leases are still this daemon's, 1ms or more (default 10s)."`
	Meta            Text `name:"meta" group:"Leases" placeholder:"KEY=VALUE,..." help:"Text added to the meta of every lease (default none)."`

	Service  Text `name:"service" group:"Services" placeholder:"NAME" help:"Service of requests that name none (default default)."`
	Services Text `name:"services" group:"Services" placeholder:"{NAME: {KEY: VALUE}}" help:"Further services and their settings, as YAML: any key of the group IDs (default none)."`

	UUIDVersion Text `name:"uuid-version" values:"4,7" group:"Services" placeholder:"VERSION" help:"Version of the UUIDs for requests that name none: 7, which sort by time, or 4, which are random (default 7)."`

	Store     Text `name:"store" group:"Locks and sequences" placeholder:"URL" help:"Where locks and sequences live: sqlite:PATH, redis://..., etcd://..., postgres://..., http(s)://... of a lease server, or none (default the provider if it can keep them, else a SQLite file in the state directory)."`
	MaxKeys   Text `name:"max-keys" group:"Locks and sequences" placeholder:"N" help:"Keys of locks, sequences and placement that the store may have before it takes no new ones, up to 1073741824, of which one user makes three quarters at most; 0 is no limit (default 1000000)."`
	MaxDisk   Text `name:"max-disk" group:"Locks and sequences" placeholder:"SIZE" help:"What these keys may take there, 1MiB or more, likewise; 0 is no limit (default 1GiB)."`
	Sequences Text `name:"sequences" group:"Locks and sequences" placeholder:"{PREFIX: {KEY: VALUE}}" help:"How keys that begin with PREFIX count, as YAML: step, start, max_value, on_max, ttl, block (default none: 1, 2, 3, ...)."`

	PlacementAuthority Text `name:"placement-authority" group:"Placement (experimental)" placeholder:"HOST:PORT" help:"Address by which other hosts reach the processes of this host, which actors are placed on; client only resolves; none is off (default none)."`
	PlacementTTL       Text `name:"placement-ttl" group:"Placement (experimental)" placeholder:"DURATION" help:"Time without a sign of life after which a host's actors may move to other hosts, 1s to 10m (default 10s)."`
	PlacementIdleTTL   Text `name:"placement-idle-ttl" group:"Placement (experimental)" placeholder:"DURATION" help:"Time without a resolve after which actors are passivated; 0 is never (default 0s)."`
	TopologyInterval   Text `name:"topology-interval" group:"Placement (experimental)" placeholder:"DURATION" help:"How often to read the list of hosts, 50ms to half of placement-ttl (default 1s)."`

	MaxThroughputPerMS      Text `name:"max-throughput-per-ms" group:"IDs (each service in services may differ)" placeholder:"N" help:"IDs per millisecond to hold leases for, 1 to 1048576 (default 256, which is one lease)."`
	Fallback                Text `name:"fallback" values:"cached+random,cached,none" group:"IDs (each service in services may differ)" placeholder:"KIND" help:"IDs made without a lease: cached+random, cached, or none for an error instead (default cached+random)."`
	SequenceStart           Text `name:"sequence-start" values:"spread,zero" group:"IDs (each service in services may differ)" placeholder:"KIND" help:"Where the sequence of a millisecond begins: spread (at random) or zero (default spread)."`
	StartupWait             Text `name:"startup-wait" group:"IDs (each service in services may differ)" placeholder:"DURATION" help:"How long requests wait for the first lease before they get fallback IDs, 0 or more (default 500ms)."`
	MaxBackward             Text `name:"max-backward" group:"IDs (each service in services may differ)" placeholder:"DURATION" help:"If the clock is behind the last ID by more than this, a request fails instead of waiting; 0 never waits, -1 waits without limit (default 5s)."`
	AcquireRetryInterval    Text `name:"acquire-retry-interval" group:"IDs (each service in services may differ)" placeholder:"DURATION" help:"Wait after the first failure to acquire a lease, 1ms or more; it doubles from there (default 1s)."`
	AcquireRetryMaxInterval Text `name:"acquire-retry-max-interval" group:"IDs (each service in services may differ)" placeholder:"DURATION" help:"Longest wait between attempts to acquire a lease, 1ms or more (default 60s)."`
	Layout                  Text `name:"layout" values:"default,js" group:"IDs (each service in services may differ)" placeholder:"NAME" help:"Layout of the IDs: default, or js for IDs below 2^53, which a JavaScript number holds (default default)."`
	BitTS                   Text `name:"bit-ts" group:"IDs (each service in services may differ)" placeholder:"BITS" help:"Bits of the timestamp while no lease has been seen, 32 to 52 (default 41)."`
	DefaultEpoch            Text `name:"default-epoch" group:"IDs (each service in services may differ)" placeholder:"TIME" help:"Where timestamps start while no lease has been seen, RFC 3339 (default 2026-01-01T00:00:00Z)."`
	ExternalSecretFile      Text `name:"external-secret-file" group:"IDs (each service in services may differ)" placeholder:"FILE" help:"File with the secret that encrypts external IDs (default none: they are scrambled without one)."`

	MaxForward  Text `name:"max-forward" group:"Clock" placeholder:"DURATION" help:"How far the wall clock may jump ahead and still be believed, 1ms or more (default 1s)."`
	ForwardHold Text `name:"forward-hold" group:"Clock" placeholder:"DURATION" help:"How long a larger jump ahead must last to be believed, 0 or more (default 60s)."`

	AdminListen Text   `name:"admin-listen" group:"Operation" placeholder:"ADDRESS" help:"HOST:PORT or unix:PATH (with socket-mode and socket-group) for metrics and health (default none)."`
	AdminPprof  Switch `name:"admin-pprof" group:"Operation" help:"Serve /debug/pprof there too (default false)."`
	LogLevel    Text   `name:"log-level" group:"Operation" placeholder:"LEVEL" values:"debug,info,warn,error" help:"debug, info, warn or error (default info)."`
	LogFormat   Text   `name:"log-format" group:"Operation" placeholder:"FORMAT" values:"auto,json,console" help:"json, console, or auto: console on a terminal, else json (default auto)."`
}

// Help is the text that kong prints below the usage line.
func (*Flags) Help() string {
	return `Every flag is also an environment variable (--max-backward is ` +
		`KAZAHANA_MAX_BACKWARD) and a key of the YAML file (max_backward). A flag ` +
		`outranks the variable, the variable outranks the file, the file outranks the ` +
		`default. Durations have a unit: 500ms, 5s, 2m.`
}

// Text is a flag's value as typed; empty if the flag was not given.
type Text struct{ typed []string }

// Given returns a flag with this text.
func Given(text string) Text { return Text{typed: []string{text}} }

// Decode implements kong.MapperValue. It accepts a negative number as a value, as in
// --max-backward -1; kong would take it for a flag.
func (t *Text) Decode(ctx *kong.DecodeContext) error {
	token := ctx.Scan.Peek()
	text, ok := token.Value.(string)
	if !ok || !token.IsValue() && !(token.Type == kong.UntypedToken && isNegative(text)) {
		return fmt.Errorf("needs a value; write --%s=VALUE if it begins with a dash", ctx.Value.Name)
	}
	ctx.Scan.Pop()
	t.typed = append(t.typed, strings.TrimSpace(text))
	return nil
}

func isNegative(text string) bool {
	return len(text) > 1 && text[0] == '-' && text[1] >= '0' && text[1] <= '9'
}

func (t *Text) texts() []string { return t.typed }

// Switch is a flag that means true when it stands alone.
type Switch struct{ typed []string }

// Decode implements kong.BoolMapperValue.
func (s *Switch) Decode(ctx *kong.DecodeContext) error {
	text := "true"
	if ctx.Scan.Peek().Type == kong.FlagValueToken {
		text = ctx.Scan.Pop().String()
	}
	s.typed = append(s.typed, strings.TrimSpace(text))
	return nil
}

// IsBool tells kong that the flag needs no value.
func (*Switch) IsBool() bool { return true }

func (s *Switch) texts() []string { return s.typed }

// typedValues returns the flags of a struct of Text and Switch that were typed, in
// its order. If a flag is repeated, the last one counts, unless its key is a list or
// a map.
func typedValues(flags any) []value {
	var out []value
	fields := reflect.ValueOf(flags).Elem()
	for i := range fields.NumField() {
		typed := fields.Field(i).Addr().Interface().(interface{ texts() []string }).texts()
		if len(typed) == 0 {
			continue
		}
		flag := fields.Type().Field(i).Tag.Get("name")
		key := strings.ReplaceAll(flag, "-", "_")
		out = append(out, value{key: key, name: key, where: "--" + flag, text: typed[len(typed)-1], repeats: typed})
	}
	return out
}

// cite makes errors cite the fields of embed.Config, which are named as those of Flags.
func cite(typed []value) {
	fields := reflect.TypeFor[Flags]()
	for field := range fields.Fields() {
		for k := range typed {
			if typed[k].where == "--"+field.Tag.Get("name") {
				typed[k].where = "Config." + field.Name
			}
		}
	}
}
