package doctor

import (
	"fmt"
	"strings"
	"time"
)

// InvalidProvider says why a provider URL cannot be used.
func InvalidProvider(err error) Finding { return finding("provider.invalid", "%v", err) }

// Unlooked says that the running daemon's provider is not looked at: it is not
// the one that is configured here.
func Unlooked(url string) Finding {
	return finding("provider.unlooked", "%s is not looked at: what it takes to reach it is in the daemon's configuration", url)
}

// Stalled says that the provider's file is not looked at: opening it would wait
// for a disk that does not answer, and nothing could end this process.
func Stalled(url string) Finding {
	return finding("provider.stalled", "%s is on the disk that keeps the daemon waiting, and is not looked at", url)
}

// SQLite is what there is to know of a provider's file.
type SQLite struct {
	Path       string
	Exists     bool
	Unreadable bool
	Header     SQLiteHeader
	Damage     string // what quick_check says; "" = nothing
	Fence      Fence
	FS         FileSystem
}

// Fence is what a file says that may have forgotten something.
type Fence struct {
	File      string
	UntilMS   int64 // Unix ms
	Reason    string
	Sequences bool // those that were used before hand out nothing
	Copy      bool // it is a copy that nobody has used so far
	NowMS     int64
}

// JudgeFence judges what a file says of itself.
func JudgeFence(f Fence) []Finding {
	switch {
	case f.Copy:
		return []Finding{finding("sqlite.copy", "%s is a copy, or was put back from a backup: once it is used, nothing is granted from it "+
			"until everything has ended that it may have forgotten", f.File)}
	case f.NowMS < f.UntilMS:
		return []Finding{finding("sqlite.fenced", "%s: nothing is granted until %s: %s", f.File, time.UnixMilli(f.UntilMS).UTC().Format(time.RFC3339), f.Reason)}
	case f.Sequences:
		return []Finding{finding("sqlite.fenced", "%s: no sequence that was used before goes on until an operator says how (docs/sequences.md): %s", f.File, f.Reason)}
	}
	return nil
}

// SQLiteHeader is what the first bytes of the file say.
type SQLiteHeader struct {
	Database      bool // it is one of SQLite's
	ApplicationID int32
	Version       int32 // of the schema
	WAL           bool
}

// JudgeSQLite judges the file. It should have this application ID, and at most
// this version.
func JudgeSQLite(s SQLite, applicationID, version int32) []Finding {
	switch {
	case s.Unreadable:
		return []Finding{finding("sqlite.unreadable", "%s cannot be looked at by this user", s.Path)}
	case !s.Exists:
		return append(judgeFileSystem("sqlite", s.Path, s.FS, true), finding("sqlite.new", "%s is not there yet: the first lease makes it", s.Path))
	}
	found := judgeFileSystem("sqlite", s.Path, s.FS, true)
	switch h := s.Header; {
	case !h.Database:
		found = append(found, finding("sqlite.foreign", "%s is no SQLite database", s.Path))
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
	if len(found) == 0 && r.Refused != nil { // the others are the reason
		found = append(found, finding("redis.refused", "%v", r.Refused))
	}
	found = append(found, judgeRedisData(r)...)
	if len(found) == 0 {
		found = append(found, finding("redis.ok", "%s: version %s, append-only file, %d replicas", r.Place, r.Version, r.Replicas))
	}
	return found
}

// judgeRedisData judges what would be left of the grants after an accident.
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

// Etcd is what there is to know of a cluster.
type Etcd struct {
	Place    string
	Err      error // no member can be reached
	Refused  error // it can, and the provider cannot use it
	Unlooked error // alarms cannot be asked for
	Members  []EtcdMember
	Alarms   []string
}

// EtcdMember is one that the URL names.
type EtcdMember struct {
	Endpoint string
	Err      error
	Version  string
	Leader   bool // it knows one
	Size     int64
	Quota    int64 // 0 = not known
	Errors   []string
}

// defaultQuota is etcd's, for versions that do not tell theirs; fullQuota the
// part of it that may be used before it is said.
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
	for _, m := range e.Members {
		found = append(found, judgeMember(m)...)
	}
	if len(e.Alarms) > 0 {
		found = append(found, finding("etcd.alarm", "%s has an alarm: %s", e.Place, strings.Join(e.Alarms, ", ")))
	}
	if e.Unlooked != nil {
		found = append(found, finding("etcd.unlooked", "%s does not tell its alarms: %v", e.Place, e.Unlooked))
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

func judgeMember(m EtcdMember) (found []Finding) {
	if m.Err != nil {
		return []Finding{finding("etcd.member", "%s cannot be reached: %v", m.Endpoint, m.Err)}
	}
	var major, minor int
	if n, _ := fmt.Sscanf(m.Version, "%d.%d", &major, &minor); n == 2 && (major < 3 || major == 3 && minor < 4) {
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

// HTTP is what there is to know of a lease server.
type HTTP struct {
	Server   string
	Err      error // it cannot be reached
	Plain    bool  // no TLS, and not on this host
	Expires  time.Time
	NotReady string // what /readyz said, if it was not "ok"
	Refused  error  // the token was not accepted
}

// certificateNotice is how long before a certificate ends to speak up.
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
	if h.Refused != nil {
		found = append(found, finding("http.refused", "%v", h.Refused))
	}
	if len(found) == 0 {
		found = append(found, finding("http.ok", "%s is ready and takes the token", h.Server))
	}
	return found
}

// Clock is what there is to know of this host's clock.
type Clock struct {
	Source       string // as the kernel calls it; "" = not known
	Known        bool   // the kernel was asked whether it is synchronised
	Synchronised bool
	Compared     string        // whose clock it was compared with; "" = none
	Ahead        time.Duration // of that clock, at the middle of the request
	Within       time.Duration // how wrong that can be
}

// How far a clock may be off. Beyond the second one releases are not sent, and
// lease servers refuse them.
const (
	skewNoticed = 500 * time.Millisecond
	skewAllowed = 30 * time.Second
)

// slowSources are those that every reading of costs a microsecond or more.
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
	for _, slow := range slowSources {
		if c.Source == slow {
			found = append(found, finding("clock.slow_source", "the kernel's clock source is %s", c.Source))
		}
	}
	switch {
	case !c.Known:
		found = append(found, finding("clock.unknown", "the system does not tell whether its clock is synchronised"))
	case !c.Synchronised:
		found = append(found, finding("clock.unsynchronised", "the kernel says that nothing synchronises its clock"))
	case len(found) == 0 && c.Compared != "":
		found = append(found, finding("clock.ok", "the clock is synchronised, and %v from that of %s", c.Ahead.Abs().Round(time.Millisecond), c.Compared))
	case len(found) == 0:
		found = append(found, finding("clock.ok", "the clock is synchronised"))
	}
	return found
}
