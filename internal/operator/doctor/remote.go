package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// InvalidProvider says why a provider URL cannot be used.
func InvalidProvider(err error) Finding { return finding("provider.invalid", "%v", err) }

// Unlooked says that the running daemon's provider is not checked: it is not the one
// that is configured here.
func Unlooked(url string) Finding {
	return finding("provider.unlooked", "%s is not checked: only the daemon's configuration says how to reach it", url)
}

// Stalled says that the provider's file is not checked: opening it would wait for a
// disk that does not answer, and the process could not be ended.
func Stalled(url string) Finding {
	return finding("provider.stalled", "%s is on the disk that keeps the daemon waiting, and is not checked", url)
}

// SQLite are the facts about a provider's file.
type SQLite struct {
	Path       string
	Exists     bool
	Unreadable bool
	Header     SQLiteHeader
	Busy       bool   // only a writer can read its log, after a crash
	Damage     string // the result of quick_check; "" = none
	Fence      Fence
	FS         FileSystem
}

// Fence is the fence of a file that may have forgotten grants.
type Fence struct {
	File      string
	UntilMS   int64 // Unix ms
	Reason    string
	Sequences bool // existing sequences hand out nothing
	Copy      bool // the file is a copy that was never used
	NowMS     int64
}

// JudgeFence judges the fence of a file.
func JudgeFence(f Fence) []Finding {
	switch {
	case f.Copy:
		return []Finding{finding("sqlite.copy", "%s is a copy, or was restored from a backup: once a process uses it, it grants nothing "+
			"until every lease and lock that it may have forgotten has ended", f.File)}
	case f.NowMS < f.UntilMS && strings.HasPrefix(f.File, "postgres"):
		return []Finding{finding("postgres.fenced", "%s: nothing is granted until %s: %s", f.File, time.UnixMilli(f.UntilMS).UTC().Format(time.RFC3339), f.Reason)}
	case f.NowMS < f.UntilMS:
		return []Finding{finding("sqlite.fenced", "%s: nothing is granted until %s: %s", f.File, time.UnixMilli(f.UntilMS).UTC().Format(time.RFC3339), f.Reason)}
	case f.Sequences:
		return []Finding{finding("sqlite.fenced", "%s: no sequence that was used before goes on until an operator says how (docs/sequences.md): %s", f.File, f.Reason)}
	}
	return nil
}

// SQLiteHeader is the header of the file.
type SQLiteHeader struct {
	Database      bool // the file is an SQLite database
	ApplicationID int32
	Version       int32 // of the schema
	WAL           bool
}

// JudgeSQLite judges the file. It should have the application ID, and at most the
// version.
func JudgeSQLite(s SQLite, applicationID, version int32) []Finding {
	switch {
	case s.Unreadable:
		return []Finding{finding("sqlite.unreadable", "this user cannot read %s", s.Path)}
	case !s.Exists:
		return append(judgeFileSystem("sqlite", s.Path, s.FS, true), finding("sqlite.new", "%s is not there yet: the first lease makes it", s.Path))
	}
	found := judgeFileSystem("sqlite", s.Path, s.FS, true)
	switch h := s.Header; {
	case !h.Database:
		found = append(found, finding("sqlite.foreign", "%s is not an SQLite database", s.Path))
	case h.ApplicationID != applicationID:
		found = append(found, finding("sqlite.foreign", "%s is a database of another program (application_id %d)", s.Path, h.ApplicationID))
	case h.Version < 1 || h.Version > version:
		found = append(found, finding("sqlite.foreign", "%s has schema version %d, and this program knows 1 to %d", s.Path, h.Version, version))
	case !h.WAL:
		found = append(found, finding("sqlite.journal", "%s has no write-ahead log", s.Path))
	}
	if s.Damage != "" {
		found = append(found, finding("sqlite.damaged", "%s: %s", s.Path, s.Damage))
	}
	if s.Busy {
		found = append(found, finding("sqlite.unreadable", "%s cannot be checked: its log is not yet recovered from a crash, which the next start does, or a process has locked it", s.Path))
	}
	if len(found) == 0 {
		found = JudgeFence(s.Fence)
	}
	if len(found) == 0 {
		found = append(found, finding("sqlite.ok", "%s can be used (%s, %s free)", s.Path, s.FS.name(), size(s.FS.Free)))
	}
	return found
}

// Redis is what there is to know of a Redis.
type Redis struct {
	Place       string
	MinReplicas int   // of the provider URL
	Err         error // it cannot be reached
	Unlooked    error // it can, and does not tell
	Refused     error // it tells, and the provider cannot use it

	Version    string
	Role       string
	Policy     string // maxmemory_policy
	Used, Most int64  // bytes; Most 0 = unlimited
	AOF        bool
	Snapshots  bool // save is configured, or not known to be off
	SaveFailed bool
	AOFFailed  bool
	Replicas   int
}

// fullMemory is the part of maxmemory that may be used before it is said.
const fullMemory = 0.9

// JudgeRedis judges a Redis.
func JudgeRedis(r Redis) []Finding {
	switch {
	case r.Err != nil:
		return []Finding{finding("redis.unreachable", "%s: %v", r.Place, r.Err)}
	case r.Unlooked != nil:
		return []Finding{finding("redis.unlooked", "%s can be reached and does not tell its settings: %v", r.Place, r.Unlooked)}
	}
	var found []Finding
	if major, _, _ := strings.Cut(r.Version, "."); len(major) == 1 && major < "7" {
		found = append(found, finding("redis.version", "%s runs version %s", r.Place, r.Version))
	}
	if r.Role != "master" {
		found = append(found, finding("redis.replica", "%s is a replica", r.Place))
	}
	if r.Policy != "noeviction" {
		found = append(found, finding("redis.eviction", "%s has maxmemory-policy %s", r.Place, r.Policy))
	}
	if len(found) == 0 && r.Refused != nil { // other findings give the reason
		found = append(found, finding("redis.refused", "%v", r.Refused))
	}
	found = append(found, judgeRedisData(r)...)
	if len(found) == 0 {
		found = append(found, finding("redis.ok", "%s: version %s, append-only file, %d replicas", r.Place, r.Version, r.Replicas))
	}
	return found
}

// judgeRedisData judges how many grants would survive a crash.
func judgeRedisData(r Redis) (found []Finding) {
	if r.Most > 0 && float64(r.Used) > fullMemory*float64(r.Most) {
		found = append(found, finding("redis.memory", "%s uses %s of the %s that maxmemory allows", r.Place, size(uint64(r.Used)), size(uint64(r.Most))))
	}
	switch {
	case !r.AOF && !r.Snapshots:
		found = append(found, finding("redis.no_persistence", "%s keeps nothing on disk", r.Place))
	case !r.AOF:
		found = append(found, finding("redis.aof_off", "%s keeps snapshots only", r.Place))
	}
	if r.AOFFailed || r.SaveFailed {
		found = append(found, finding("redis.write_errors", "%s could not write its data to the disk the last time", r.Place))
	}
	if r.Role != "master" {
		return found
	}
	switch {
	case r.Replicas < r.MinReplicas:
		found = append(found, finding("redis.replicas_missing", "%s has %d replicas, and min_replicas=%d must confirm", r.Place, r.Replicas, r.MinReplicas))
	case r.Replicas > 0 && r.MinReplicas == 0:
		found = append(found, finding("redis.unconfirmed", "%s has %d replicas, and no grant waits for them", r.Place, r.Replicas))
	}
	return found
}

// Etcd are the facts about a cluster.
type Etcd struct {
	Place    string
	Err      error // no member can be reached
	Refused  error // the cluster answers, and the provider cannot use it
	Unlooked error // alarms cannot be read
	Members  []EtcdMember
	Alarms   []string
}

// EtcdMember is a member in the URL.
type EtcdMember struct {
	Endpoint string
	Err      error
	Version  string
	Leader   bool // it knows a leader
	Size     int64
	Quota    int64 // 0 = not known
	Errors   []string
}

// defaultQuota is etcd's default, for versions that do not report their quota.
// fullQuota is the used part of it from which doctor warns.
const (
	defaultQuota = 2 << 30
	fullQuota    = 0.8
)

// JudgeEtcd judges a cluster.
func JudgeEtcd(e Etcd) []Finding {
	if e.Err != nil {
		return []Finding{finding("etcd.unreachable", "%s: %v", e.Place, e.Err)}
	}
	var found []Finding
	var revoking []string
	for _, m := range e.Members {
		found = append(found, judgeMember(m)...)
		if m.revokes() {
			revoking = append(revoking, m.Endpoint+" runs version "+m.Version)
		}
	}
	if len(revoking) > 0 {
		found = append(found, finding("etcd.leases", "%s: a leader whose disk hangs may end locks, activations and sequences with a ttl before their time", strings.Join(revoking, ", ")))
	}
	if len(e.Alarms) > 0 {
		found = append(found, finding("etcd.alarm", "%s has an alarm: %s", e.Place, strings.Join(e.Alarms, ", ")))
	}
	if e.Unlooked != nil {
		found = append(found, finding("etcd.unlooked", "%s does not report its alarms: %v", e.Place, e.Unlooked))
	}
	if e.Refused != nil {
		found = append(found, finding("etcd.refused", "%v", e.Refused))
	}
	if len(e.Members) == 1 {
		found = append(found, finding("etcd.single", "the provider URL names one member, %s", e.Members[0].Endpoint))
	}
	if len(found) == 0 {
		found = append(found, finding("etcd.ok", "%s: %d members, version %s", e.Place, len(e.Members), e.Members[0].Version))
	}
	return found
}

// before reports whether the member runs a known version that is older.
func (m EtcdMember) before(major, minor, patch int) bool {
	var v [3]int
	n, _ := fmt.Sscanf(m.Version, "%d.%d.%d", &v[0], &v[1], &v[2])
	return n == len(v) && slices.Compare(v[:], []int{major, minor, patch}) < 0
}

// revokes reports whether the member has the error https://github.com/etcd-io/etcd/issues/15247: a leader
// hangs, and another one takes its place. The old one still revokes leases that the new one has renewed.
func (m EtcdMember) revokes() bool {
	return m.before(3, 4, 31) && !m.before(3, 4, 0) || m.before(3, 5, 13) && !m.before(3, 5, 0)
}

func judgeMember(m EtcdMember) (found []Finding) {
	if m.Err != nil {
		return []Finding{finding("etcd.member", "%s cannot be reached: %v", m.Endpoint, m.Err)}
	}
	if m.before(3, 4, 0) {
		found = append(found, finding("etcd.version", "%s runs version %s", m.Endpoint, m.Version))
	}
	if !m.Leader {
		found = append(found, finding("etcd.no_leader", "%s knows no leader", m.Endpoint))
	}
	quota, whose := m.Quota, ""
	if quota == 0 {
		quota, whose = defaultQuota, " (etcd's default)"
	}
	if float64(m.Size) > fullQuota*float64(quota) {
		found = append(found, finding("etcd.space", "%s uses %s of its quota of %s%s", m.Endpoint, size(uint64(m.Size)), size(uint64(quota)), whose))
	}
	return found
}

// HTTP are the facts about a lease server.
type HTTP struct {
	Server   string
	Err      error // it cannot be reached
	Plain    bool  // no TLS, and not on this host
	Expires  time.Time
	NotReady string // the answer of /readyz, unless it was "ok"
	Crowded  string // what /readyz says behind "ok": limits that are reached, pools that have little room
	Refused  error  // the token was not accepted
	Stray    error  // a key with a slash does not arrive as it was sent
}

// certificateNotice is how long before the end of a certificate doctor warns.
const certificateNotice = 14 * 24 * time.Hour

// JudgeHTTP judges a lease server.
func JudgeHTTP(h HTTP, now time.Time) []Finding {
	if h.Err != nil {
		return []Finding{finding("http.unreachable", "%s: %v", h.Server, h.Err)}
	}
	var found []Finding
	if h.Plain {
		found = append(found, finding("http.plain", "%s is used without TLS", h.Server))
	}
	if !h.Expires.IsZero() && h.Expires.Sub(now) < certificateNotice {
		found = append(found, finding("http.certificate", "the certificate of %s ends on %s", h.Server, h.Expires.UTC().Format(time.DateOnly)))
	}
	if h.NotReady != "" {
		found = append(found, finding("http.not_ready", "%s is not ready: %s", h.Server, h.NotReady))
	}
	if h.Crowded != "" {
		found = append(found, finding("http.crowded", "%s: %s", h.Server, h.Crowded))
	}
	if h.Refused != nil {
		found = append(found, finding("http.refused", "%v", h.Refused))
	}
	if h.Stray != nil {
		found = append(found, finding("http.path", "%s: a lock, a sequence or an actor whose key has a slash, a space or a percent sign cannot be used: %v", h.Server, h.Stray))
	}
	if len(found) == 0 {
		found = append(found, finding("http.ok", "%s is ready and takes the token", h.Server))
	}
	return found
}

// JudgePool judges a pool of machine IDs. fullness is that of provider.Usage.
func JudgePool(store, fullness string, free, all int64) []Finding {
	if fullness == "roomy" {
		return nil
	}
	return []Finding{finding("pool."+fullness, "%d of %d machine IDs of %s can be granted", free, all, store)}
}

// Clock are the facts about this host's clock.
type Clock struct {
	Source       string // the kernel's name for it; "" = not known
	Known        bool   // the kernel was asked whether it is synchronised
	Synchronised bool
	Compared     string        // whose clock it was compared with; "" = none
	Ahead        time.Duration // of that clock, at the middle of the request
	Within       time.Duration // the error of Ahead at most
}

// How far a clock may be off before doctor warns, and before it fails. Beyond the
// second limit daemons send no releases, and lease servers refuse them.
const (
	skewNoticed = 500 * time.Millisecond
	skewAllowed = 30 * time.Second
)

// slowSources are clock sources whose every reading takes a microsecond or more.
var slowSources = []string{"acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit"}

// JudgeClock judges the clock.
func JudgeClock(c Clock) []Finding {
	var found []Finding
	off := max(c.Ahead.Abs()-c.Within, 0)
	direction := "ahead of"
	if c.Ahead < 0 {
		direction = "behind"
	}
	switch {
	case c.Compared == "":
	case off > skewAllowed:
		found = append(found, finding("clock.wrong", "this clock is %v %s that of %s", c.Ahead.Abs().Round(time.Millisecond), direction, c.Compared))
	case off > skewNoticed:
		found = append(found, finding("clock.skew", "this clock is %v %s that of %s", c.Ahead.Abs().Round(time.Millisecond), direction, c.Compared))
	}
	if slices.Contains(slowSources, c.Source) {
		found = append(found, finding("clock.slow_source", "the kernel's clock source is %s", c.Source))
	}
	switch {
	case !c.Known:
		found = append(found, finding("clock.unknown", "the system does not report whether its clock is synchronised"))
	case !c.Synchronised:
		found = append(found, finding("clock.unsynchronised", "the kernel says that nothing synchronises its clock"))
	case len(found) == 0 && c.Compared != "":
		found = append(found, finding("clock.ok", "the clock is synchronised, and %v from that of %s", c.Ahead.Abs().Round(time.Millisecond), c.Compared))
	case len(found) == 0:
		found = append(found, finding("clock.ok", "the clock is synchronised"))
	}
	return found
}
