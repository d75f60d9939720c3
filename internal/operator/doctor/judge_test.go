package doctor

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	errFault = errors.New("the fault")
	now      = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
)

// changed is a copy of what is right with one thing wrong.
func changed[T any](right T, change func(*T)) T {
	change(&right)
	return right
}

// What is right, of each kind.
var (
	goodSocket = Socket{Path: "/s", Exists: true, Mode: fs.ModeSocket | 0o660, UID: 7, GID: 8, Group: "ids"}
	goodDaemon = Daemon{PID: 9, Version: "v1", Installed: "v1", Mode: "regular", Provider: "p", ConfiguredFor: "p", StateDir: "/d", ConfiguredStates: "/d"}
	goodFS     = FileSystem{Type: "ext4", Free: 1 << 40}
	goodState  = StateDir{Path: "/d", Exists: true, Directory: true, Mode: fs.ModeDir | 0o700, UID: 7, DaemonUID: 7, Known: true, FS: goodFS}
	goodSQLite = SQLite{Path: "/f", Exists: true, FS: goodFS, Header: SQLiteHeader{Database: true, ApplicationID: 5, Version: 3, WAL: true}}
	goodRedis  = Redis{Place: "redis://h", Version: "7.2.4", Role: "master", Policy: "noeviction", AOF: true, Snapshots: true, Replicas: 1, MinReplicas: 1}
	goodMember = EtcdMember{Endpoint: "h:2379", Version: "3.6.0", Leader: true, Size: 1 << 20, Quota: 2 << 30}
	goodEtcd   = Etcd{Place: "etcd://h", Members: []EtcdMember{goodMember, goodMember, goodMember}}
	goodHTTP   = HTTP{Server: "https://h", Expires: now.Add(90 * 24 * time.Hour)}
	goodClock  = Clock{Source: "tsc", Known: true, Synchronised: true, Compared: "redis://h"}
)

func socket(change func(*Socket)) []Finding {
	return JudgeSocket(changed(goodSocket, change), "regular")
}

func door(change func(*Door)) []Finding {
	right := Door{Key: "http_listen", Address: "unix:/s", Socket: goodSocket, PID: 9}
	return []Finding{JudgeDoor(changed(right, change), 9, goodSocket.UID)}
}

// units judges what systemctl show prints of two units that run, but for a change.
func units(change func(service, socket *Unit)) []Finding {
	both := parseUnits(`Result=success
ExecMainStatus=0
Id=kazahanad.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled

Result=success
Id=kazahanad.socket
LoadState=loaded
ActiveState=active
UnitFileState=enabled
`)
	change(&both[0], &both[1])
	return JudgeUnits(both, false)
}

func aDaemon(change func(*Daemon)) []Finding  { return JudgeDaemon(changed(goodDaemon, change)) }
func aState(change func(*StateDir)) []Finding { return JudgeStateDir(changed(goodState, change)) }
func aFile(change func(*SQLite)) []Finding    { return JudgeSQLite(changed(goodSQLite, change), 5, 3) }
func aRedis(change func(*Redis)) []Finding    { return JudgeRedis(changed(goodRedis, change)) }
func aPostgres(change func(*Postgres)) []Finding {
	return JudgePostgres(changed(Postgres{Place: "postgres://h/db", Version: "15.4", Fsync: true, Used: 10, Most: 100}, change))
}

func anEtcd(change func(*Etcd)) []Finding  { return JudgeEtcd(changed(goodEtcd, change)) }
func aServer(change func(*HTTP)) []Finding { return JudgeHTTP(changed(goodHTTP, change), now) }
func aClock(change func(*Clock)) []Finding { return JudgeClock(changed(goodClock, change)) }

func aMember(change func(*EtcdMember)) []Finding {
	return anEtcd(func(e *Etcd) { e.Members = []EtcdMember{goodMember, changed(goodMember, change), goodMember} })
}

// judgements are every finding that there can be, each with what leads to it.
var judgements = []struct {
	want  string // codes
	found []Finding
}{
	{"config.ok", []Finding{JudgeConfiguration("/etc/x", nil)}},
	{"config.invalid", []Finding{JudgeConfiguration("/etc/x", errFault)}},

	{"socket.answers", socket(func(*Socket) {})},
	{"socket.missing", socket(func(s *Socket) { s.Exists = false })},
	{"socket.denied", socket(func(s *Socket) { s.Denied = true })},
	{"socket.denied", socket(func(s *Socket) { s.Denied, s.Exists = true, false })},
	{"socket.not_a_socket", socket(func(s *Socket) { s.Mode = 0o644 })},
	{"socket.stale", socket(func(s *Socket) { s.Refused = true })},
	{"socket.silent", socket(func(s *Socket) { s.Err = errFault })},
	{"socket.answers socket.everybody", socket(func(s *Socket) { s.Mode |= 0o002 })},
	{"socket.answers", socket(func(s *Socket) { s.Mode, s.Limited = s.Mode|0o002, true })},
	{"socket.answers socket.root_only", socket(func(s *Socket) { s.UID, s.GID = 0, 0 })},
	{"socket.answers socket.root_only", socket(func(s *Socket) { s.UID, s.Mode = 0, fs.ModeSocket|0o600 })},
	{"socket.answers", socket(func(s *Socket) { s.UID = 0 })},
	{"socket.answers socket.unreachable", socket(func(s *Socket) { s.Barrier, s.Closed = "/run/kazahana", 0o700 })},

	{"door.answers", door(func(*Door) {})},
	{"door.answers", door(func(d *Door) { d.PID = 0 })},
	{"door.denied", door(func(d *Door) { d.Denied, d.Err = true, errFault })},
	{"door.foreign", door(func(d *Door) { d.Socket.UID++ })},
	{"door.foreign", door(func(d *Door) { d.PID++ })},
	{"door.not_local", door(func(d *Door) { d.Foreign, d.Err = true, errFault })},
	{"door.silent", door(func(d *Door) { d.Err = errFault })},
	{"door.stale", door(func(d *Door) { d.Stale, d.Err = true, errFault })},
	{"socket.unusable", []Finding{Unusable("socket.unusable", "/run/x", errFault)}},
	{"listen.unusable", []Finding{Unusable("listen.unusable", "admin_listen", errFault)}},
	{"sqlite.unusable", []Finding{Unusable("sqlite.unusable", "/x/leases.db", errFault)}},
	{"sqlite.refused", []Finding{Unusable("sqlite.refused", "/x/leases.db", errFault)}},

	{"config.credential", []Finding{UnknownCredential(errFault)}},
	{"account.missing", []Finding{NoAccount(Unit{Name: "kazahanad.service", User: "kazahana"})}},
	{"account.unknown", []Finding{UnknownAccount()}},
	{"", JudgeUnits(nil, false)},
	{"unit.ok", units(func(service, socket *Unit) {})},
	{"unit.ok", units(func(service, socket *Unit) { service.Active = "inactive" })}, // until the first request
	{"unit.ok", units(func(service, socket *Unit) { service.File, socket.File = "disabled", "disabled" })},
	{"unit.down", units(func(service, socket *Unit) { service.Active, socket.Active = "inactive", "inactive" })},
	{"unit.down", units(func(service, socket *Unit) {
		service.Active, socket.Active, service.File = "inactive", "inactive", "disabled"
	})},
	{"unit.off", units(func(service, socket *Unit) {
		*service = Unit{Name: service.Name, Load: "loaded", Active: "inactive", File: "disabled"}
		*socket = *service
	})},
	{"", units(func(service, socket *Unit) {
		service.Load, socket.Load, socket.Active, service.Active = "not-found", "not-found", "inactive", "inactive"
	})},
	{"unit.failed", units(func(service, socket *Unit) {
		service.Active, service.Result, service.Status = "failed", "exit-code", "2"
	})},
	{"unit.start_limit unit.start_limit", units(func(service, socket *Unit) {
		service.Active, service.Result, socket.Active, socket.Result = "failed", "start-limit-hit", "failed", "service-start-limit-hit"
	})},
	{"unit.masked", units(func(service, socket *Unit) { service.Load, service.Active = "masked", "inactive" })},
	{"unit.invalid", units(func(service, socket *Unit) { service.Load, service.Active = "bad-setting", "inactive" })},

	{"daemon.regular", aDaemon(func(*Daemon) {})},
	{"daemon.starting", aDaemon(func(d *Daemon) { d.Mode = "starting" })},
	{"daemon.regular daemon.overloaded", aDaemon(func(d *Daemon) { d.Overload = []string{"max_in_flight is reached: 7 refused"} })},
	{"daemon.fallback", aDaemon(func(d *Daemon) { d.Mode = "fallback_random" })},
	{"daemon.uncertain", aDaemon(func(d *Daemon) { d.Mode = "fallback_cached_uncertain" })},
	{"daemon.unavailable", aDaemon(func(d *Daemon) { d.Mode = "unavailable" })},
	{"daemon.regular daemon.version", aDaemon(func(d *Daemon) { d.Installed = "v2" })},
	{"daemon.regular config.unlike_daemon", aDaemon(func(d *Daemon) { d.Provider = "q" })},
	{"daemon.regular config.unlike_daemon", aDaemon(func(d *Daemon) { d.StateDir = "" })},
	{"daemon.regular", aDaemon(func(d *Daemon) { d.Provider, d.ConfiguredFor = "q", "" })},

	{"state.ok", aState(func(*StateDir) {})},
	{"state.none", aState(func(s *StateDir) { s.Path = "" })},
	{"state.new", aState(func(s *StateDir) { s.Exists, s.Known = false, false })},
	{"state.lost", aState(func(s *StateDir) { s.Exists, s.Lost = false, true })},
	{"state.unreadable", aState(func(s *StateDir) { s.Exists = false })},
	{"state.unreadable", aState(func(s *StateDir) { s.Unreadable = true })},
	{"state.unreadable", aState(func(s *StateDir) { s.Exists, s.Unreadable = false, true })},
	{"state.not_a_directory", aState(func(s *StateDir) { s.Directory = false })},
	{"state.open", aState(func(s *StateDir) { s.Mode |= 0o002 })},
	{"state.open_foreign", aState(func(s *StateDir) { s.Mode, s.UID = s.Mode|0o002, 1 })},
	{"state.open_foreign", aState(func(s *StateDir) { s.Mode, s.UID, s.Known = s.Mode|0o002, 1, false })},
	{"state.foreign_owner", aState(func(s *StateDir) { s.UID = 1 })},
	{"state.foreign_owner", aState(func(s *StateDir) { s.UID, s.Start = 1, errFault })},
	{"state.unusable", aState(func(s *StateDir) { s.Start = errFault })},
	{"state.unusable", aState(func(s *StateDir) { s.Exists, s.Known, s.Start = false, false, errFault })},
	{"state.unreadable state.unusable", aState(func(s *StateDir) { s.Exists, s.Unreadable, s.Start = false, true, errFault })},
	{"state.missing", aState(func(s *StateDir) { s.Used, s.Forgot = false, true })},
	{"state.in_use", aState(func(s *StateDir) { s.Known, s.Holder = false, "process 7" })},
	{"state.ok", aState(func(s *StateDir) { s.UID, s.Known = 1, false })}, // whose the daemon will be is not known
	{"state.ok", aState(func(s *StateDir) { s.UID, s.DaemonUID = 1, 0 })}, // root may write everywhere
	{"state.network", aState(func(s *StateDir) { s.FS.Type = "nfs" })},
	{"state.network", aState(func(s *StateDir) { s.FS.Type = "fuse.sshfs" })},
	{"state.read_only", aState(func(s *StateDir) { s.FS.ReadOnly = true })},
	{"state.volatile", aState(func(s *StateDir) { s.FS.Type = "tmpfs" })},
	{"state.ok", aState(func(s *StateDir) { s.FS.Type, s.FS.Free, s.Kubernetes = "tmpfs", 8<<20, true })},
	{"state.full", aState(func(s *StateDir) { s.FS.Free = 1 << 20 })},
	{"state.low", aState(func(s *StateDir) { s.FS.Free = 10 << 20 })},
	{"state.ok", aState(func(s *StateDir) { s.FS = FileSystem{} })}, // nothing is known of it
	{"state.stalled", aState(func(s *StateDir) { s.Stalled = time.Minute })},
	{"state.write_failed", aState(func(s *StateDir) { s.WriteError = "no space left" })},
	{"state.live_failed", aState(func(s *StateDir) { s.LiveError = "no space left" })},
	{"state.live_none", aState(func(s *StateDir) { s.Used = true })},
	{"state.live_on_disk", aState(func(s *StateDir) { s.Used, s.Live, s.LiveOnDisk = true, "/live", true })},
	{"state.live_lost", aState(func(s *StateDir) { s.Used, s.Live, s.LiveMissing, s.Known = true, "/live", true, true })},
	{"state.ok", aState(func(s *StateDir) { s.Used, s.Live, s.LiveMissing, s.Known = true, "/live", true, false })}, // after a boot
	{"state.live_damaged", aState(func(s *StateDir) { s.Used, s.Live, s.LiveDamage = true, "/live", errFault })},
	{"state.damaged", aState(func(s *StateDir) { s.Damage = errFault })},
	{"state.mark_ahead", aState(func(s *StateDir) { s.Ahead = []string{"orders"} })},
	{"state.refused_epoch", aState(func(s *StateDir) { s.Refused = []string{"orders"} })},

	{"scope.shared", []Finding{JudgeScope("shared", "p", Place{Kubernetes: true, Container: true})}},
	{"scope.host", []Finding{JudgeScope("host", "p", Place{})}},
	{"scope.container", []Finding{JudgeScope("host", "p", Place{Container: true})}},
	{"scope.kubernetes", []Finding{JudgeScope("host", "p", Place{Kubernetes: true, Container: true})}},
	{"scope.unverified", []Finding{JudgeScope("unverified", "p", Place{})}},
	{"scope.none", []Finding{JudgeScope("none", "p", Place{})}},

	{"provider.invalid", []Finding{InvalidProvider(errFault)}},
	{"provider.unlooked", []Finding{Unlooked("p")}},
	{"provider.stalled", []Finding{Stalled("p")}},

	{"sqlite.ok", aFile(func(*SQLite) {})},
	{"sqlite.ok", aFile(func(s *SQLite) { s.Header.Version = 1 })}, // it will be migrated
	{"sqlite.new", aFile(func(s *SQLite) { s.Exists = false })},
	{"sqlite.network sqlite.new", aFile(func(s *SQLite) { s.Exists, s.FS.Type = false, "cifs" })},
	{"sqlite.unreadable", aFile(func(s *SQLite) { s.Unreadable = true })},
	{"sqlite.foreign", aFile(func(s *SQLite) { s.Header.Database = false })},
	{"sqlite.unreadable", aFile(func(s *SQLite) { s.Busy = true })},
	{"sqlite.foreign", aFile(func(s *SQLite) { s.Header.ApplicationID = 6 })},
	{"sqlite.foreign", aFile(func(s *SQLite) { s.Header.Version = 4 })},
	{"sqlite.foreign", aFile(func(s *SQLite) { s.Header.Version = 0 })},
	{"sqlite.journal", aFile(func(s *SQLite) { s.Header.WAL = false })},
	{"sqlite.damaged", aFile(func(s *SQLite) { s.Damage = "row 3" })},
	{"sqlite.copy", aFile(func(s *SQLite) { s.Fence = Fence{File: "f", Copy: true} })},
	{"sqlite.fenced", aFile(func(s *SQLite) { s.Fence = Fence{File: "f", NowMS: 1000, UntilMS: 1001, Reason: "why"} })},
	{"sqlite.ok", aFile(func(s *SQLite) { s.Fence = Fence{File: "f", NowMS: 1001, UntilMS: 1001, Reason: "why"} })},
	{"sqlite.fenced", JudgeFence(Fence{File: "f", NowMS: 1001, UntilMS: 1001, Sequences: true})},
	{"", JudgeFence(Fence{File: "f"})},
	{"sqlite.full", aFile(func(s *SQLite) { s.FS.Free = 0 })},

	{"redis.ok", aRedis(func(*Redis) {})},
	{"redis.unreachable", aRedis(func(r *Redis) { r.Err = errFault })},
	{"redis.unlooked", aRedis(func(r *Redis) { r.Unlooked = errFault })},
	{"redis.version", aRedis(func(r *Redis) { r.Version = "6.2.14" })},
	{"redis.ok", aRedis(func(r *Redis) { r.Version = "10.0.0" })},
	{"redis.replica", aRedis(func(r *Redis) { r.Role = "slave" })},
	{"redis.eviction", aRedis(func(r *Redis) { r.Policy, r.Refused = "allkeys-lru", errFault })},
	{"redis.refused", aRedis(func(r *Redis) { r.Refused = errFault })},
	{"redis.memory", aRedis(func(r *Redis) { r.Used, r.Most = 95, 100 })},
	{"redis.ok", aRedis(func(r *Redis) { r.Used, r.Most = 85, 100 })},
	{"redis.no_persistence", aRedis(func(r *Redis) { r.AOF, r.Snapshots = false, false })},
	{"redis.aof_off", aRedis(func(r *Redis) { r.AOF = false })},
	{"redis.write_errors", aRedis(func(r *Redis) { r.AOFFailed = true })},
	{"redis.write_errors", aRedis(func(r *Redis) { r.SaveFailed = true })},
	{"redis.replicas_missing", aRedis(func(r *Redis) { r.Replicas = 0 })},
	{"redis.unconfirmed", aRedis(func(r *Redis) { r.MinReplicas = 0 })},
	{"redis.ok", aRedis(func(r *Redis) { r.Replicas, r.MinReplicas = 0, 0 })},

	{"postgres.ok", aPostgres(func(*Postgres) {})},
	{"postgres.new", aPostgres(func(p *Postgres) { p.New = true })},
	{"postgres.unreachable", aPostgres(func(p *Postgres) { p.Err = errFault })},
	{"postgres.refused", aPostgres(func(p *Postgres) { p.Err, p.Refused = errFault, true })},
	{"postgres.plain", aPostgres(func(p *Postgres) { p.Plain = true })},
	{"postgres.permission", aPostgres(func(p *Postgres) { p.Lacks = "create tables" })},
	{"postgres.fsync_off", aPostgres(func(p *Postgres) { p.Fsync = false })},
	{"postgres.fenced", aPostgres(func(p *Postgres) { p.Fenced = true })},
	{"postgres.unconfirmed", aPostgres(func(p *Postgres) { p.Standbys = 1 })},
	{"postgres.ok", aPostgres(func(p *Postgres) { p.Standbys, p.Synchronous = 1, true })},
	{"postgres.ok", aPostgres(func(p *Postgres) { p.Standbys, p.Trusted = 1, true })},
	{"postgres.connections", aPostgres(func(p *Postgres) { p.Used = p.Most })},
	{"etcd.ok", anEtcd(func(*Etcd) {})},
	{"etcd.unreachable", anEtcd(func(e *Etcd) { e.Err = errFault })},
	{"etcd.refused", anEtcd(func(e *Etcd) { e.Refused = errFault })},
	{"etcd.unlooked", anEtcd(func(e *Etcd) { e.Unlooked = errFault })},
	{"etcd.alarm", anEtcd(func(e *Etcd) { e.Alarms = []string{"NOSPACE"} })},
	{"etcd.single", anEtcd(func(e *Etcd) { e.Members = e.Members[:1] })},
	{"etcd.member", aMember(func(m *EtcdMember) { m.Err = errFault })},
	{"etcd.version", aMember(func(m *EtcdMember) { m.Version = "3.3.27" })},
	{"etcd.leases", aMember(func(m *EtcdMember) { m.Version = "3.4.23" })},
	{"etcd.leases", aMember(func(m *EtcdMember) { m.Version = "3.4.30" })},
	{"etcd.leases", aMember(func(m *EtcdMember) { m.Version = "3.5.0" })},
	{"etcd.leases", aMember(func(m *EtcdMember) { m.Version = "3.5.12" })},
	{"etcd.leases", anEtcd(func(e *Etcd) {
		old := changed(goodMember, func(m *EtcdMember) { m.Version = "3.4.23" })
		e.Members = []EtcdMember{old, old, old}
	})},
	{"etcd.ok", aMember(func(m *EtcdMember) { m.Version = "3.4.31" })},
	{"etcd.ok", aMember(func(m *EtcdMember) { m.Version = "3.5.13" })},
	{"etcd.no_leader", aMember(func(m *EtcdMember) { m.Leader = false })},
	{"etcd.space", aMember(func(m *EtcdMember) { m.Size, m.Quota = 9<<20, 10<<20 })},
	{"etcd.space", aMember(func(m *EtcdMember) { m.Size, m.Quota = 19<<27, 0 })},

	{"http.ok", aServer(func(*HTTP) {})},
	{"http.unreachable", aServer(func(h *HTTP) { h.Err = errFault })},
	{"http.plain", aServer(func(h *HTTP) { h.Plain = true })},
	{"http.certificate", aServer(func(h *HTTP) { h.Expires = now.Add(time.Hour) })},
	{"http.ok", aServer(func(h *HTTP) { h.Expires = time.Time{} })},
	{"http.not_ready", aServer(func(h *HTTP) { h.NotReady = "503" })},
	{"", JudgePool("redis:", "roomy", 9, 10)},
	{"pool.nearly_full", JudgePool("redis:", "nearly_full", 9, 100)},
	{"pool.almost_full", JudgePool("redis:", "almost_full", 1, 100)},
	{"pool.full", JudgePool("redis:", "full", 0, 100)},
	{"http.crowded", aServer(func(h *HTTP) { h.Crowded = "a pool is full" })},
	{"http.path", aServer(func(h *HTTP) { h.Stray = errFault })},
	{"http.refused", aServer(func(h *HTTP) { h.Refused = errFault })},

	{"clock.ok", aClock(func(*Clock) {})},
	{"clock.ok", aClock(func(c *Clock) { c.Compared = "" })},
	{"clock.skew", aClock(func(c *Clock) { c.Ahead = -2 * time.Second })},
	{"clock.ok", aClock(func(c *Clock) { c.Ahead, c.Within = -2*time.Second, 1600*time.Millisecond })},
	{"clock.wrong", aClock(func(c *Clock) { c.Ahead = time.Minute })},
	{"clock.slow_source", aClock(func(c *Clock) { c.Source = "hpet" })},
	{"clock.unknown", aClock(func(c *Clock) { c.Known = false })},
	{"clock.unsynchronised", aClock(func(c *Clock) { c.Synchronised = false })},

	{"layout.ok", []Finding{JudgeLayout("s", now.AddDate(10, 0, 0), now)}},
	{"layout.soon", []Finding{JudgeLayout("s", now.AddDate(2, 0, 0), now)}},
	{"layout.over", []Finding{JudgeLayout("s", now, now)}},

	{"files.ok", []Finding{JudgeFiles(Files{Whose: "x", Limit: 1 << 20, MaxConnections: 16384})}},
	{"files.low", []Finding{JudgeFiles(Files{Whose: "x", Limit: 16384, MaxConnections: 16384})}},
	{"files.unknown", []Finding{JudgeFiles(Files{Whose: "x", Err: errFault})}},
}

func codes(found []Finding) string {
	var all []string
	for _, f := range found {
		all = append(all, f.Code)
	}
	return strings.Join(all, " ")
}

func TestJudgements(t *testing.T) {
	seen := map[string]bool{}
	for i, j := range judgements {
		if got := codes(j.found); got != j.want {
			t.Errorf("judgement %d is %q, want %q: %+v", i, got, j.want, j.found)
		}
		for _, f := range j.found {
			seen[f.Code] = true
			if f.Says == "" || strings.Contains(f.Says, "%!") || strings.Contains(f.Says, "\n") {
				t.Errorf("%s says %q", f.Code, f.Says)
			}
		}
	}
	for _, e := range Catalogue {
		if !seen[e.Code] {
			t.Errorf("nothing leads to %s", e.Code)
		}
	}
}

// Whoever reads a finding that is not good is told what to do; the others need
// nothing.
func TestCatalogue(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+\.[a-z_]+$`)
	seen := map[string]bool{}
	for _, e := range Catalogue {
		if !form.MatchString(e.Code) || (e.Do == "") != (e.Level == OK) || seen[e.Code] {
			t.Errorf("%+v", e)
		}
		seen[e.Code] = true
	}
}

// docs/doctor.md lists what there is, as it is.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+\\.[a-z_]+)` \\|.*$").FindAllStringSubmatch(string(page), -1) {
		i := slices.IndexFunc(Catalogue, func(e Entry) bool { return e.Code == m[1] })
		if i < 0 {
			t.Errorf("there is no finding %s", m[1])
			continue
		}
		e := Catalogue[i]
		if want := "| " + string(e.Level) + " |"; !strings.Contains(m[0], want) || !strings.HasSuffix(m[0], "| "+e.Do+" |") {
			t.Errorf("the page says of %s: %s; want the level %s and what to do: %s", e.Code, m[0], e.Level, e.Do)
		}
		listed = append(listed, e.Code)
	}
	for _, e := range Catalogue {
		if !slices.Contains(listed, e.Code) {
			t.Errorf("the page does not have %s", e.Code)
		}
	}
}

// What systemctl prints of a unit's environment reaches the settings; the rest of it does not.
func TestUnitEnvironment(t *testing.T) {
	unit := parseUnits("Id=kazahanad.service\nStateDirectory=kazahana\n" +
		`Environment=GOTRACEBACK=crash KAZAHANA_PROVIDER=redis://h/0?password_file=/run/x "KAZAHANA_LOG=a b" $'KAZAHANA_STORE=it\'s'` + "\n")[0]
	want := []string{"KAZAHANA_PROVIDER=redis://h/0?password_file=/run/x", "KAZAHANA_LOG=a b", "KAZAHANA_STORE=it's", "STATE_DIRECTORY=/var/lib/kazahana"}
	if got := unit.Environ(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for path, want := range map[string]bool{"/run/credentials/kazahanad.service/x": true, "/etc/kazahana/x": false} {
		if _, err := os.Open(path); LacksCredential(err) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}
