package doctor

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/status"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/problem"
)

// reading is one reading of another clock: by this clock it happened between began
// and ended.
type reading struct {
	began, ended, other time.Time
	within              time.Duration // the other's resolution
}

// compare notes how this clock compares with another one.
func (c *Clock) compare(whose string, r reading) {
	half := r.ended.Sub(r.began) / 2
	c.Compared, c.Ahead, c.Within = whose, r.began.Add(half).Sub(r.other), half+r.within
}

// ProbeRedis asks a Redis server for its settings, and compares the clocks. refused
// asks the provider whether it can use the server.
func ProbeRedis(ctx context.Context, cfg redisconn.Config, refused func(context.Context) error, clock *Clock) (r Redis) {
	r.Place, r.MinReplicas = cfg.Place(), cfg.MinReplicas
	client, err := redisconn.Open(cfg)
	if err != nil {
		r.Err = err
		return r
	}
	defer client.Close()
	var at reading
	_, r.Err = redisconn.Run(ctx, client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (none struct{}, err error) {
		at.began = time.Now()
		at.other, err = conn.Time(ctx).Result()
		at.ended = time.Now()
		return none, err
	})
	if r.Err != nil {
		return r
	}
	clock.compare(r.Place, at)
	var info string
	info, r.Unlooked = redisconn.Run(ctx, client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (string, error) {
		return conn.Info(ctx).Result()
	})
	if r.Unlooked != nil {
		return r
	}
	r.read(info)
	// CONFIG is for administrators. If it is not allowed, assume that there are
	// snapshots.
	saves, err := redisconn.Run(ctx, client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (map[string]string, error) {
		return conn.ConfigGet(ctx, "save").Result()
	})
	r.Snapshots = err != nil || saves["save"] != ""
	r.Refused = refused(ctx)
	return r
}

// read parses the answer of INFO.
func (r *Redis) read(info string) {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64) // 0 if INFO lacks it
		return n
	}
	failed := func(name string) bool { return fields[name] != "" && fields[name] != "ok" }
	r.Version, r.Role, r.Policy = fields["redis_version"], fields["role"], fields["maxmemory_policy"]
	r.Used, r.Most, r.AOF = number("used_memory"), number("maxmemory"), number("aof_enabled") == 1
	r.SaveFailed, r.AOFFailed = failed("rdb_last_bgsave_status"), r.AOF && failed("aof_last_write_status")
	r.Replicas = int(number("connected_slaves"))
}

// memberTimeout is how long one member of a cluster may take.
const memberTimeout = 2 * time.Second

// ProbeEtcd asks each member in the URL.
func ProbeEtcd(ctx context.Context, cfg etcdconn.Config, refused func(context.Context) error) (e Etcd) {
	e.Place = cfg.Place()
	client, err := etcdconn.Open(cfg)
	if err != nil {
		e.Err = err
		return e
	}
	defer client.Close()
	var failed error
	reached := false
	for i, endpoint := range client.KV.Endpoints() {
		m := EtcdMember{Endpoint: cfg.Endpoints[i]}
		within, cancel := context.WithTimeout(ctx, memberTimeout)
		st, err := client.KV.Status(within, endpoint)
		cancel()
		if err != nil {
			m.Err, failed = errors.New(status.Convert(err).Message()), err
		} else {
			reached = true
			m.Version, m.Leader, m.Size, m.Quota, m.Errors = st.Version, st.Leader != 0, st.DbSize, st.DbSizeQuota, st.Errors
		}
		e.Members = append(e.Members, m)
	}
	if !reached {
		e.Err = client.Explain(failed)
		return e
	}
	within, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	alarms, err := client.KV.AlarmList(within)
	if e.Unlooked = client.Explain(err); err == nil {
		for _, a := range alarms.Alarms {
			e.Alarms = append(e.Alarms, a.Alarm.String())
		}
	}
	e.Refused = refused(ctx)
	return e
}

// dateResolution is how exact the Date of an answer is.
const dateResolution = time.Second

// maxAnswer limits how much of an answer is read.
const maxAnswer = 4096

// ProbeHTTP asks each lease server whether it is ready. refused asks the provider,
// which sends the token.
func ProbeHTTP(ctx context.Context, cfg httpconn.Config, refused func(context.Context) error, clock *Clock) (all []HTTP) {
	tlsConfig, err := connurl.TLS(cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	transport := &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	reached := false
	for _, server := range cfg.Servers {
		base := *server
		if server.Scheme == httpconn.SchemeUnix {
			transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", server.Path)
			}
			base = url.URL{Scheme: "http", Host: "localhost"}
		}
		h := HTTP{Server: server.String(), Plain: base.Scheme == "http" && !onThisHost(base.Hostname()), Err: err}
		if h.Err == nil {
			h.ask(ctx, client, &base, clock)
			h.askForKey(ctx, cfg, server)
		}
		reached = reached || h.Err == nil
		all = append(all, h)
	}
	if reached {
		err := refused(ctx)
		for i := range all {
			if all[i].Err == nil && all[i].NotReady == "" {
				all[i].Refused = err
				break // the provider asks any one of them
			}
		}
	}
	return all
}

// ask asks a server for its readiness.
func (h *HTTP) ask(ctx context.Context, client *http.Client, base *url.URL, clock *Clock) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("readyz").String(), nil)
	if err != nil {
		h.Err = err
		return
	}
	at := reading{began: time.Now(), within: dateResolution}
	res, err := client.Do(req)
	at.ended = time.Now()
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok { // the finding names the URL
			err = wrapped.Err
		}
		h.Err = err
		return
	}
	defer res.Body.Close()
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		at.other = date.Add(dateResolution / 2) // Date is rounded down
		clock.compare(h.Server, at)
	}
	h.Expires = earliest(res.TLS)
	switch res.StatusCode {
	case http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		_, more, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		h.Crowded = httpconn.Shorten(strings.ReplaceAll(more, "\n", "; "))
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented: // servers of another make may lack /readyz
		media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
		if media == problem.MediaType { // ours has such a path: a proxy leaves a prefix, or the URL has one too many
			h.Err = fmt.Errorf("%s for %s: a lease server answers, and not at this path", res.Status, req.URL.Path)
		}
	default:
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // a part will do
		h.NotReady = httpconn.Shorten(fmt.Sprintf("%s %s", res.Status, strings.TrimSpace(string(text))))
	}
}

// probedKey has what proxies change on its way.
const probedKey = "kazahanad/Doctor 100%"

// askForKey looks at a lock with such a key, where the server keeps locks at all.
func (h *HTTP) askForKey(ctx context.Context, cfg httpconn.Config, server *url.URL) {
	cfg.Servers = []*url.URL{server}
	client, err := httpconn.New(cfg)
	if err != nil || h.Err != nil {
		return // other findings say so
	}
	defer client.Close()
	get := func(key string) (is bool, err error) {
		var answer struct {
			Key string `json:"lock_key"`
		}
		err = client.Do(ctx, httpconn.Call{
			Method: http.MethodGet, Path: "/v1/locks/" + httpconn.Escape(key), Query: url.Values{"lock_key": {key}}, Answer: &answer, Limit: maxAnswer,
		})
		if err == nil && answer.Key != key {
			return true, fmt.Errorf("it answers for the key %q when asked for %q", answer.Key, key)
		}
		is, _ = httpconn.Stray(err)
		return is, err
	}
	if stray, _ := get("kazahanad-doctor"); stray {
		return // a server of another make
	}
	if stray, err := get(probedKey); stray {
		h.Stray = err
	}
}

// earliest is the earliest end of the server's certificates.
func earliest(connection *tls.ConnectionState) (end time.Time) {
	if connection == nil {
		return end
	}
	for _, c := range connection.PeerCertificates {
		if end.IsZero() || c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

func onThisHost(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}

// sqliteMagic begins every SQLite database.
const sqliteMagic = "SQLite format 3\x00"

// ProbeSQLite reads a file without creating anything beside it.
func ProbeSQLite(ctx context.Context, path string) (s SQLite) {
	s.Path, s.FS = path, fileSystem(path)
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		s.Exists = true // to open a FIFO would wait for a writer
		return s
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		s.Unreadable = !errors.Is(err, fs.ErrNotExist)
		return s
	}
	defer f.Close()
	s.Exists = true
	header := make([]byte, 100)
	if _, err := io.ReadFull(f, header); err != nil || string(header[:16]) != sqliteMagic {
		return s
	}
	s.Header = SQLiteHeader{
		Database: true, WAL: header[18] == 2 && header[19] == 2,
		Version:       int32(binary.BigEndian.Uint32(header[60:])),
		ApplicationID: int32(binary.BigEndian.Uint32(header[68:])),
	}
	if s.Damage, err = quickCheck(ctx, path); sqlitefile.Busy(err) {
		s.Busy = true
	} else if err != nil {
		s.Damage = err.Error()
	} else if s.Damage == "" {
		s.Fence, _ = probeFence(ctx, path)
	}
	return s
}

// quickCheck runs SQLite's quick_check.
func quickCheck(ctx context.Context, path string) (damage string, err error) {
	db, _, err := sqlitefile.OpenForReading(path)
	if err != nil {
		return "", err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&damage); err != nil || damage == "ok" {
		return "", err
	}
	return damage, nil
}

// ProbeStoreFence reads whether a store of locks and sequences is fenced.
func ProbeStoreFence(ctx context.Context, path string) Fence {
	f, trusted := probeFence(ctx, path)
	f.Sequences = !trusted
	return f
}

// probeFence reads whether a file is fenced. If it cannot be read, other probes
// report that.
func probeFence(ctx context.Context, path string) (f Fence, trusted bool) {
	f.File, f.NowMS = path, time.Now().UnixMilli()
	db, resolved, err := sqlitefile.OpenForReading(path)
	if err != nil {
		return f, true
	}
	defer db.Close()
	fence, isCopy, err := sqlitefile.Peek(ctx, db, resolved)
	if err != nil {
		return f, true
	}
	f.UntilMS, f.Reason, f.Copy = fence.UntilMS, fence.Reason, isCopy
	return f, fence.Trusted
}
