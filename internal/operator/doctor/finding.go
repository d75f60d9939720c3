package doctor

import (
	"fmt"
	"slices"
)

// Level is how bad a finding is.
type Level string

// The levels, from good to bad.
const (
	OK      Level = "ok"
	Unknown Level = "unknown" // it could not be checked
	Warn    Level = "warn"    // it works, but not well, or not for long
	Fail    Level = "fail"    // it does not work, or breaks a promise
)

// Finding is the result of one check.
type Finding struct {
	Code  string `json:"code"` // what it is, for programs and for docs/doctor.md
	Level Level  `json:"level"`
	Says  string `json:"says"`         // what was found, with names and numbers
	Do    string `json:"do,omitempty"` // what to do about it
}

// finding makes a finding of the catalogue.
func finding(code, format string, args ...any) Finding {
	i := slices.IndexFunc(Catalogue, func(e Entry) bool { return e.Code == code })
	if i < 0 {
		panic("doctor: the catalogue has no finding " + code)
	}
	return Finding{Code: code, Level: Catalogue[i].Level, Says: fmt.Sprintf(format, args...), Do: Catalogue[i].Do}
}

// Worst is the worst level among the findings.
func Worst(all []Finding) Level {
	order := []Level{OK, Unknown, Warn, Fail}
	worst := 0
	for _, f := range all {
		worst = max(worst, slices.Index(order, f.Level))
	}
	return order[worst]
}

// Entry is a possible finding.
type Entry struct {
	Code  string
	Level Level
	Do    string // "" if there is nothing to do
}

// Catalogue lists every possible finding.
var Catalogue = []Entry{
	{"config.credential", Unknown, "Run doctor again while the service runs."},
	{"config.invalid", Fail, "Correct what is named; kazahanad serve --check says the same."},
	{"config.ok", OK, ""},
	{"config.unlike_daemon", Warn, "Restart the daemon if the configuration was changed; else run doctor with the daemon's flags, environment and user."},

	{"socket.answers", OK, ""},
	{"socket.denied", Warn, "Let this user connect if it should: put it into the group that is named."},
	{"socket.everybody", Warn, "Set socket_mode to 0660 and socket_group to the group of the programs that need IDs, or name them in allow_uids and allow_gids."},
	{"socket.missing", Warn, "Start the daemon: systemctl start kazahanad, or kazahanad serve."},
	{"socket.not_a_socket", Fail, "Move away what is there, or set another socket."},
	{"socket.root_only", Warn, "Set socket_group to a group of the programs that need IDs."},
	{"socket.silent", Fail, "Look at the daemon's log; restart it."},
	{"socket.stale", Warn, "Start the daemon; it replaces the socket that was left."},
	{"socket.unreachable", Warn, "Let them enter the directory that is named (chmod o+x, or a group of theirs), or set another socket."},
	{"socket.unusable", Fail, "Do what the message says, or set another socket."},

	{"unit.down", Fail, "Start it: systemctl start kazahanad.socket kazahanad.service."},
	{"unit.failed", Fail, "Mend the cause, which journalctl -u kazahanad names; then systemctl restart kazahanad."},
	{"unit.invalid", Fail, "Mend the unit or its drop-ins: systemctl cat kazahanad; then systemctl daemon-reload."},
	{"unit.masked", Fail, "If the daemon should run: systemctl unmask kazahanad.service kazahanad.socket."},
	{"unit.off", Warn, "If the daemon should run: systemctl enable --now kazahanad.socket kazahanad.service."},
	{"unit.ok", OK, ""},
	{"unit.start_limit", Fail, "Mend the cause; then systemctl reset-failed kazahanad.service kazahanad.socket, and systemctl start kazahanad.socket."},

	{"account.missing", Fail, "Make it: systemd-sysusers, or useradd --system; or name another by User= in a drop-in."},
	{"account.unknown", Unknown, "Run doctor as root or as the daemon's user."},

	{"daemon.fallback", Warn, "Mend what keeps leases from being granted; see the findings about the provider."},
	{"daemon.overloaded", Warn, "The log says who has used it up. Look at what that user, process or address does; where all of it is wanted, raise the limit. docs/operations.md lists them."},
	{"daemon.regular", OK, ""},
	{"daemon.starting", OK, ""},
	{"daemon.uncertain", Fail, "Mend what keeps leases from being granted; where no fallback ID may be made twice, set fallback: none until then."},
	{"daemon.unavailable", Fail, "Mend what keeps leases from being granted; see the findings about the provider."},
	{"daemon.version", Warn, "Restart the daemon, so that it runs the version that is installed."},

	{"door.answers", OK, ""},
	{"door.denied", Warn, "Let this user connect if it should, by socket_group, allow_uids and allow_gids."},
	{"door.foreign", Fail, "Stop what has made that socket, or set another path; then restart the daemon."},
	{"door.not_local", Fail, "Set an address of this host, or HOST:PORT of loopback; then restart the daemon."},
	{"door.silent", Fail, "Restart the daemon if the setting is new; else look at its log for what else listens there."},
	{"door.stale", Fail, "Restart the daemon: it replaces the socket that was left."},
	{"listen.unusable", Fail, "Do what the message says, or choose another address."},

	{"state.damaged", Fail, "Follow what the message says; docs/operations.md has a section on the state directory."},
	{"state.foreign_owner", Fail, "Give the directory and what is in it to the daemon's user: chown -R."},
	{"state.full", Fail, "Free some space on that file system."},
	{"state.in_use", Fail, "Stop that process, or find out why it does not answer; else set another state_dir."},
	{"state.live_damaged", Fail, "Nothing, where the message says that it is made anew; find out what writes to live_dir, which belongs to the daemon alone."},
	{"state.live_failed", Fail, "Do what the message says. IDs go on meanwhile; a crash would cost the leases."},
	{"state.live_lost", Fail, "Restart the daemon: it makes a new one. IDs go on meanwhile, and a crash would cost the leases. Find out what removes files from live_dir."},
	{"state.live_none", Warn, "Set live_dir to a directory on a file system in memory (tmpfs), for example /run/kazahana-live."},
	{"state.live_on_disk", Fail, "Set live_dir to a directory on a file system in memory (tmpfs), for example /run/kazahana-live."},
	{"state.lost", Fail, "Put it back, or restart the daemon: it begins a new one. IDs go on meanwhile; a restart without it may cost their order."},
	{"state.low", Warn, "Free some space on that file system."},
	{"state.mark_ahead", Fail, "Set this host's clock right; if it is right, stop the daemon and run kazahanad state reset-floor, which gives up the order against those IDs."},
	{"state.missing", Fail, "Put the directory's files back if they were moved. Else start the daemon: it begins anew, and only the clock keeps its IDs above earlier ones."},
	{"state.network", Fail, "Set state_dir to a directory on a local file system: locks and memory-mapped files do not work reliably over a network."},
	{"state.new", OK, ""},
	{"state.none", Warn, "Set state_dir, unless the daemon may forget its leases and the order of its IDs at every restart."},
	{"state.not_a_directory", Fail, "Set state_dir to a directory."},
	{"state.ok", OK, ""},
	{"state.open", Warn, "Run chmod o-w on it: any user who can write there can give the daemon leases."},
	{"state.open_foreign", Fail, "Set state_dir to a directory inside it, or run chmod o-w and chown."},
	{"state.read_only", Fail, "Mount it writable, or set state_dir to a directory on another file system."},
	{"state.refused_epoch", Warn, "Decide which epoch is right; kazahanad state accept-epoch accepts the one that was refused."},
	{"state.stalled", Fail, "Find out why that disk does not answer: a backup that froze it, a lost volume, a dying drive. IDs go on meanwhile."},
	{"state.unreadable", Unknown, "Run doctor as root or as the daemon's user."},
	{"state.unusable", Fail, "Do what the message says: a daemon that starts now ends with it."},
	{"state.volatile", Warn, "Set state_dir to a directory that outlives the container and the host's reboot."},
	{"state.write_failed", Fail, "Do what the message says. IDs go on meanwhile, and kill -9 loses nothing; a power failure would lose their order."},

	{"scope.container", Warn, "Name a provider that the containers share, or mount one file into all containers of this host and run no others."},
	{"scope.host", OK, ""},
	{"scope.kubernetes", Fail, "Name a provider that all pods share: http(s)://, postgres://, redis:// or etcd://."},
	{"scope.none", Warn, "Name a provider, unless IDs that only chance keeps apart will do."},
	{"scope.shared", OK, ""},
	{"scope.unverified", Warn, "Make sure by other means that no two daemons have the same machine ID, or name a provider that coordinates."},

	{"provider.invalid", Fail, "Correct the provider URL."},
	{"provider.unlooked", Unknown, "Run doctor with the daemon's configuration and user."},
	{"provider.stalled", Unknown, "Run doctor again when that disk answers."},

	{"sqlite.copy", Fail, "Wait until it grants again, once it is used; where nothing is missing, say so with: kazahanad leases init."},
	{"sqlite.damaged", Fail, "Stop everything that uses the file, and follow docs/providers/sqlite.md."},
	{"sqlite.fenced", Fail, "Wait until then; where nothing is missing, say so with: kazahanad leases init. docs/providers/sqlite.md has more."},
	{"sqlite.foreign", Fail, "Name another file: this one is not a lease database of this version."},
	{"sqlite.full", Fail, "Free some space on that file system."},
	{"sqlite.journal", Fail, "Stop everything that uses the file, then: sqlite3 FILE 'PRAGMA journal_mode=wal'."},
	{"sqlite.network", Fail, "Put the file on a local file system, or use a lease server, PostgreSQL, Redis or etcd."},
	{"sqlite.new", OK, ""},
	{"sqlite.ok", OK, ""},
	{"sqlite.refused", Fail, "Do what the message says; docs/providers/sqlite.md explains it."},
	{"sqlite.unreadable", Unknown, "Run doctor as root or as the daemon's user."},
	{"sqlite.unusable", Fail, "Let the daemon's user read and write the file and its directory, or name another file."},

	{"redis.aof_off", Warn, "Set appendonly yes: after a crash Redis forgets the grants since its last snapshot, and no lease is granted for the longest term and quarantine."},
	{"redis.eviction", Fail, "Set maxmemory-policy noeviction: with any other one Redis may drop grants."},
	{"redis.memory", Warn, "Raise maxmemory: when it is reached, Redis refuses grants."},
	{"redis.no_persistence", Warn, "Set appendonly yes: after every restart Redis has forgotten all grants, and no lease is granted for the longest term and quarantine."},
	{"redis.ok", OK, ""},
	{"redis.refused", Fail, "Do what the message says; docs/providers/redis.md explains it."},
	{"redis.replica", Fail, "Name the primary in the provider URL, or the sentinels."},
	{"redis.replicas_missing", Fail, "Bring the replicas back, or lower min_replicas: until then every acquire fails."},
	{"redis.unconfirmed", Warn, "Add min_replicas=1 to the provider URL, so that a failover loses no grant that counted."},
	{"redis.unlooked", Unknown, "Allow the user INFO, or look at the settings by hand."},
	{"redis.unreachable", Fail, "Bring the server back, or correct the provider URL."},
	{"redis.version", Fail, "Use Redis 7 or later."},
	{"redis.write_errors", Fail, "Look at the log and the disk of Redis: what it confirms does not reach the disk."},

	{"etcd.alarm", Fail, "Free space (compact, defragment) or mend the member, then: etcdctl alarm disarm."},
	{"etcd.leases", Warn, "Update to etcd 3.4.31, 3.5.13 or later, unless only machine IDs are kept there or the cluster has one member; docs/providers/etcd.md says what can end early."},
	{"etcd.member", Warn, "Bring the member back: with fewer than a majority nothing is granted."},
	{"etcd.no_leader", Fail, "Bring members back until there is a majority."},
	{"etcd.ok", OK, ""},
	{"etcd.refused", Fail, "Do what the message says; docs/providers/etcd.md explains it."},
	{"etcd.single", Warn, "Use three members or more, if grants should go on while one is away."},
	{"etcd.space", Warn, "Turn on auto-compaction, defragment, or raise --quota-backend-bytes: when the quota is reached, etcd refuses grants."},
	{"etcd.unlooked", Unknown, "Look at the cluster with etcdctl endpoint status and etcdctl alarm list."},
	{"etcd.unreachable", Fail, "Bring the cluster back, or correct the provider URL."},
	{"etcd.version", Fail, "Use etcd 3.4 or later."},

	{"postgres.connections", Warn, "Raise max_connections of the server, or put a lease server in front of it: when it is reached, leases are refused."},
	{"postgres.fenced", Fail, "Wait until then; where nothing is missing, say so with: kazahanad leases init. docs/providers/postgres.md has more."},
	{"postgres.fsync_off", Fail, "Set fsync = on: after a power failure the server may have forgotten grants or be damaged, and every restart holds back grants."},
	{"postgres.new", OK, ""},
	{"postgres.ok", OK, ""},
	{"postgres.permission", Fail, "Give the user the rights that docs/providers/postgres.md lists."},
	{"postgres.plain", Warn, "Turn on TLS (ssl = on) and use sslmode=verify-full: whoever can listen in reads the leases' secrets."},
	{"postgres.refused", Fail, "Do what the message says; docs/providers/postgres.md explains it."},
	{"postgres.unconfirmed", Warn, "Set synchronous_standby_names, and failover_fence=0 in the provider URL; or accept that a failover holds back grants for the longest term and quarantine."},
	{"postgres.unreachable", Fail, "Bring the server back, or correct the provider URL."},

	{"http.crowded", Warn, "Look at the lease server's status page, which shows the pool, and at its log, which says who has used up a limit. docs/runbook.md says what to do."},
	{"http.certificate", Warn, "Renew the lease server's certificate."},
	{"http.not_ready", Fail, "Look at the lease server's log: its own store cannot be used."},
	{"http.ok", OK, ""},
	{"http.plain", Warn, "Use https://: on the way, others can read the token and the leases' secrets."},
	{"http.path", Warn, "Let the proxy pass each path on as it came: docs/providers/http.md, behind a proxy, has the settings."},
	{"http.refused", Fail, "Put a token with the scope leases into token_file."},
	{"http.unreachable", Fail, "Bring the lease server back, or correct the provider URL, its ca_file or its certificate."},

	{"pool.almost_full", Warn, "Give the pool more machine IDs, or find out who takes them: kazahanad leases lists the holders; docs/runbook.md, KazahanaPoolNearlyFull."},
	{"pool.full", Fail, "Give the pool more machine IDs, or find out who takes them: kazahanad leases lists the holders; docs/runbook.md, KazahanaPoolNearlyFull."},
	{"pool.nearly_full", Warn, "Give the pool more machine IDs before it is full: kazahanad leases lists the holders; docs/capacity.md."},

	{"clock.ok", OK, ""},
	{"clock.skew", Warn, "Synchronise the clocks of this host and of the provider's (chrony, systemd-timesyncd)."},
	{"clock.slow_source", Warn, "Use the processor's own counter if the kernel trusts it: reading this clock source is slow, and every ID reads it."},
	{"clock.unknown", Unknown, "Look by hand whether something synchronises this clock."},
	{"clock.unsynchronised", Warn, "Run chrony or systemd-timesyncd on this host; docs/clocks.md has their settings."},
	{"clock.wrong", Fail, "Set the clock: leases are refused or not handed back when it is this far off."},

	{"layout.ok", OK, ""},
	{"layout.over", Fail, "Move to a later epoch or to more bits of time; docs/ids.md says how."},
	{"layout.soon", Warn, "Plan the move to a later epoch or to more bits of time; docs/ids.md says how."},

	{"files.low", Warn, "Raise the limit (LimitNOFILE= in the unit), or lower max_connections."},
	{"files.ok", OK, ""},
	{"files.unknown", Unknown, "Run doctor as root or as the daemon's user."},
}
