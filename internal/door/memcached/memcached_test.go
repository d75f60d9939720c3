package memcached

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/door/doortest"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	dto "github.com/prometheus/client_model/go"
)

func TestMain(m *testing.M) { await.Main(m) }

// start serves.
func start(t testing.TB, o doortest.Options) *doortest.Rig {
	t.Helper()
	return doortest.Start(t, o, func(ctx context.Context, l net.Listener, s *daemon.Server) error {
		Serve(ctx, l, s.NewDoor("memcached", Refusal), "1.2.3")
		return nil
	})
}

// peer is a client.
type peer struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

func dial(t testing.TB, r *doortest.Rig) *peer {
	nc := r.Dial(t)
	return &peer{t, nc, bufio.NewReader(nc)}
}

// useUp takes all IDs of a millisecond.
func (p *peer) useUp() {
	p.t.Helper()
	for range 1 << snowflake.DefaultBitSeq {
		p.get("id")
	}
}

func (p *peer) send(text string) {
	p.t.Helper()
	if _, err := p.Write([]byte(text)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) line() string {
	p.t.Helper()
	line, err := p.in.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%q, %v", line, err)
	}
	if !strings.HasSuffix(line, "\r\n") {
		p.t.Fatalf("%q", line)
	}
	return strings.TrimSuffix(line, "\r\n")
}

var valueLine = regexp.MustCompile(`^VALUE (\S+) 0 (\d+)( \d+)?$`)

// ids reads the answer to a get, with the keys as they were sent.
func (p *peer) ids(keys ...string) (ids []snowflake.ID) {
	p.t.Helper()
	for _, key := range keys {
		head := p.line()
		m := valueLine.FindStringSubmatch(head)
		text := ""
		if m != nil {
			text = p.line()
		}
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || m[1] != key || m[2] != strconv.Itoa(len(text)) {
			p.t.Fatalf("%s: %q, %q", key, head, text)
		}
		ids = append(ids, snowflake.ID(id))
	}
	if last := p.line(); last != "END" {
		p.t.Fatalf("%q", last)
	}
	return ids
}

func (p *peer) get(keys ...string) []snowflake.ID {
	p.t.Helper()
	p.send("get " + strings.Join(keys, " ") + "\r\n")
	return p.ids(keys...)
}

// ends checks that nothing more comes.
func (p *peer) ends() {
	p.t.Helper()
	if b, err := p.in.ReadByte(); err == nil {
		p.t.Fatalf("%q comes before the end", b)
	} else if os.IsTimeout(err) {
		p.t.Fatal("the connection does not end")
	}
}

// TestProtocol: the answers, and whether the connection lives on.
func TestProtocol(t *testing.T) {
	const id = `(\d{17,19})`
	value := func(key string) string { return "VALUE " + key + ` 0 1\d\r\n` + id + `\r\n` }
	long := strings.Repeat("k", maxKey-len("id:"))
	prefixed := func(key, name string) string {
		return regexp.QuoteMeta(`SERVER_ERROR UNKNOWN_SERVICE: the key "`+key+`" does not begin with a service or id `+
			`(does the client put a prefix before its keys? let it be id: or SERVICE:): there is no service "`+name+`"; `) + `.*\r\n`
	}
	r := start(t, doortest.Options{Services: []string{"orders", "a.b-c_1"}})
	for _, c := range []struct {
		sent, want string
		ends       bool
	}{
		{sent: "get id\r\n", want: value("id") + `END\r\n`},
		{sent: "GET id\n", want: value("id") + `END\r\n`},
		{sent: "get id1 id2\r\n", want: value("id1") + value("id2") + `END\r\n`}, // katsubushi's README
		{sent: "GET new\r\n", want: value("new") + `END\r\n`},                    // likewise
		{sent: "get  id   orders:1 orders:2 a.b-c_1 \r\n", want: value("id") + value("orders:1") + value("orders:2") + value(`a\.b-c_1`) + `END\r\n`},
		{sent: "gets default\r\n", want: `VALUE default 0 18 ` + id + `\r\n` + id + `\r\nEND\r\n`},
		{sent: "get id:" + long + "\r\n", want: value("id:"+long) + `END\r\n`},
		{sent: "get id:" + long + "k\r\n", want: `CLIENT_ERROR a key has .*\r\n`},
		{sent: "get a\tb\r\n", want: `CLIENT_ERROR a key has .*\r\n`},
		{sent: "get order\r\n", want: `SERVER_ERROR UNKNOWN_SERVICE: .*there is no service "order"; there are a\.b-c_1, default, orders\r\n`},
		// Prefixes of clients: the name of a service is one, with any text behind it.
		{sent: "get id:1:orders orders:1:id default: id::x new:x id7:x\r\n", want: value("id:1:orders") + value("orders:1:id") + value("default:") + value("id::x") + value("new:x") + value("id7:x") + `END\r\n`},
		{sent: "get :1:orders\r\n", want: prefixed(":1:orders", "")}, // Django's, without a prefix of its own
		{sent: "get id :id\r\n", want: prefixed(":id", "")},
		{sent: "get :\r\n", want: prefixed(":", "")},
		{sent: "get shop:id\r\n", want: prefixed("shop:id", "shop")},
		{sent: "get laravel_cache_id\r\n", want: prefixed("laravel_cache_id", "laravel_cache_id")},
		{sent: "get shop/orders:1\r\n", want: prefixed("shop/orders:1", "shop/orders")},
		{sent: "get id idx\r\n", want: `SERVER_ERROR UNKNOWN_SERVICE: .*\r\n`},
		{sent: "get\r\n", want: `ERROR\r\n`},
		{sent: "get \r\n", want: `ERROR\r\n`},
		{sent: "\r\n", want: `ERROR\r\n`},
		{sent: "increment id 1\r\nincr id 1\r\n", want: `ERROR\r\nERROR\r\n`},
		{sent: "mg id:1 v\r\nmn\r\n", want: `ERROR\r\nERROR\r\n`}, // meta commands
		{sent: "version\r\n", want: `VERSION 1\.2\.3\r\n`},
		{sent: "stats\r\n", want: `ERROR\r\n`},
		{sent: "get id\r\nversion\r\nget id\r\n", want: value("id") + `END\r\nVERSION 1\.2\.3\r\n` + value("id") + `END\r\n`},
		{sent: "quit\r\n", ends: true},
		{sent: "version\r\nquit\r\nget id\r\n", want: `VERSION 1\.2\.3\r\n`, ends: true},
		{sent: "set id 0 0 3\r\nabc\r\n", want: `SERVER_ERROR this server .*\r\n`, ends: true},
		{sent: "GET /id HTTP/1.1\r\nHost: x\r\n\r\n", ends: true},
		{sent: "POST / HTTP/1.1\r\n\r\nget id\r\n", ends: true},
		{sent: strings.Repeat("x", maxLine+1), want: `CLIENT_ERROR the line is too long\r\n`, ends: true},
	} {
		p := dial(t, r)
		p.send(c.sent)
		if !c.ends { // all has come when this has
			p.send("version\r\n")
			c.want += `VERSION 1\.2\.3\r\n`
		}
		var got strings.Builder
		for lines := strings.Count(c.want, `\r\n`); lines > 0; lines-- {
			got.WriteString(p.line() + "\r\n")
		}
		if c.ends {
			p.ends()
		}
		if !regexp.MustCompile("^" + c.want + "$").MatchString(got.String()) {
			t.Errorf("%.60q: %q, want %s", c.sent, got.String(), c.want)
		}
		_ = p.Close()
	}
}

// TestIncreasing: IDs come from the one stream of a service, whichever way they are
// asked for, and however the bytes are cut.
func TestIncreasing(t *testing.T) {
	for _, tcp := range []bool{false, true} {
		r := start(t, doortest.Options{Services: []string{"orders"}, TCP: tcp})
		a, b := dial(t, r), dial(t, r)
		last := snowflake.ID(0)
		take := func(ids []snowflake.ID) {
			for _, id := range ids {
				if id <= last {
					t.Fatalf("%d after %d", id, last)
				}
				last = id
			}
		}
		for range 50 {
			take(a.get("id"))
			take(b.get("id", "id:1", "default:x"))
			for _, piece := range []string{"g", "et i", "d id", ":2\r", "\n"} {
				a.send(piece)
			}
			take(a.ids("id", "id:2"))
		}
		var many []string
		for i := range 900 {
			many = append(many, fmt.Sprintf("id:%d", i))
		}
		take(a.get(many...))
		take(a.get("id"))
		// Keys of several services, in any order.
		ids := a.get("orders:1", "id:1", "orders:2", "id:2")
		if ids[0] >= ids[2] || ids[1] >= ids[3] || ids[1] <= last {
			t.Errorf("%v", ids)
		}
	}
}

// TestWaits: a get waits for a millisecond, as NextID does, within max_in_flight; and a
// peer that is gone waits for nothing.
func TestWaits(t *testing.T) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	o := doortest.Options{Clock: fake}
	o.MaxInFlight = 1
	r := start(t, o)
	p := dial(t, r)
	p.useUp()
	p.send("version\r\nget id id:2\r\nversion\r\n")
	if got := p.line(); got != "VERSION 1.2.3" { // which does not wait with the get
		t.Fatal(got)
	}
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	other := dial(t, r)
	other.send("get id\r\n")
	if got := other.line(); !strings.HasPrefix(got, "SERVER_ERROR OVERLOADED: ") || !strings.Contains(got, "max_in_flight") {
		t.Error(got)
	}
	fake.Advance(time.Millisecond)
	p.ids("id", "id:2")
	if got := p.line(); got != "VERSION 1.2.3" {
		t.Error(got)
	}
	p.get("id")
	other.get("id")
}

// A client that speaks the binary protocol is told so, and waits for nothing.
func TestBinaryProtocol(t *testing.T) {
	p := dial(t, start(t, doortest.Options{}))
	p.send("get id\r\n\x80\x0b\x00\x00\x00\x00\x00\x00")
	p.line()
	p.line()
	p.line()
	if got := p.line(); got != strings.TrimSpace(notBinary) {
		t.Error(got)
	}
	p.ends()
}

// counted is how many requests were answered with the code.
func counted(t *testing.T, r *doortest.Rig, code string) float64 {
	t.Helper()
	var m dto.Metric
	must.Succeed(t, r.Metrics.Requests("memcached", code).Write(&m))
	return m.Counter.GetValue()
}

// TestGone: a peer that is gone leaves its place among waiting ones.
func TestGone(t *testing.T) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	r := start(t, doortest.Options{Clock: fake})
	p := dial(t, r)
	p.useUp()
	fake.Jump(-time.Second) // so that the wait has no end
	p.send("get id\r\n")
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	_ = p.Close()
	await.Eventually(t, "its place is free", func() bool { return r.Server.Status().InFlight == 0 && r.Server.Status().Connections == 0 })
	for _, code := range []string{"TIMEOUT", "CLOCK_BACKWARD"} {
		if n := counted(t, r, code); n != 0 {
			t.Errorf("it has waited to the end: %s %v", code, n)
		}
	}
}

// TestRefusals: limits of connections and credentials are those of the socket.
func TestRefusals(t *testing.T) {
	o := doortest.Options{}
	o.MaxConnections = 1
	r := start(t, o)
	first := dial(t, r)
	first.get("id")
	second := dial(t, r)
	if got := second.line(); !strings.HasPrefix(got, "SERVER_ERROR OVERLOADED: ") || !strings.Contains(got, "max_connections") {
		t.Error(got)
	}
	second.ends()
	_ = first.Close()
	await.Eventually(t, "a place is free", func() bool { return r.Server.Status().Connections == 0 })
	dial(t, r).get("id")

	for allowed, want := range map[bool]string{true: "VALUE", false: "SERVER_ERROR PERMISSION_DENIED: "} {
		uid := uint32(os.Getuid())
		if !allowed {
			uid++
		}
		o := doortest.Options{}
		o.AllowUIDs = []uint32{uid}
		p := dial(t, start(t, o))
		_, _ = p.Write([]byte("get id\r\n"))
		if got := p.line(); !strings.HasPrefix(got, want) {
			t.Errorf("allowed %t: %s", allowed, got)
		}
	}
}

// TestReloadEndsConnections: a peer that may not connect any more is not served either.
func TestReloadEndsConnections(t *testing.T) {
	l := daemon.Limits{AllowUIDs: []uint32{uint32(os.Getuid())}, MaxConnections: 10, MaxInFlight: 10, DrainTimeout: doortest.Patience}
	r := start(t, doortest.Options{Limits: l})
	p := dial(t, r)
	p.get("id")
	r.Server.Allow([]uint32{uint32(os.Getuid()) + 1}, nil)
	p.ends()
}

// TestCommandsStayInTheSocket: short commands behind a waiting one take no memory of the daemon.
func TestCommandsStayInTheSocket(t *testing.T) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	r := start(t, doortest.Options{Clock: fake})
	p := dial(t, r)
	p.useUp()
	p.send(strings.Repeat("get id\r\n", 1000))
	waits := func() bool { return r.Server.Status().InFlight == 1 }
	await.Eventually(t, "one waits", waits)
	fake.Advance(time.Millisecond)
	for range 1 << snowflake.DefaultBitSeq {
		p.ids("id")
	}
	await.Eventually(t, "one waits again", waits)
	if n := r.Server.Status().Memory.Reserved; n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	fake.Advance(time.Second)
	_ = p.Close()
}

// TestEvictedRequestsEnd: a connection that is evicted gives back its memory, although its get
// waits for IDs.
func TestEvictedRequestsEnd(t *testing.T) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	o := doortest.Options{Clock: fake}
	o.AllowUIDs = []uint32{uint32(os.Getuid())}
	o.MaxConnections, o.MaxInFlight = 10, 10
	r := start(t, o)
	p := dial(t, r)
	p.useUp()
	fake.Jump(-time.Second) // so that the wait has no end
	p.send("get" + strings.Repeat(" id", 2500) + "\r\n")
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	r.Server.Allow([]uint32{uint32(os.Getuid()) + 1}, nil)
	if got := p.line(); !strings.HasPrefix(got, "SERVER_ERROR PERMISSION_DENIED: ") {
		t.Error(got)
	}
	p.ends()
	await.Eventually(t, "nothing is left of it", func() bool {
		s := r.Server.Status()
		return s.InFlight == 0 && s.Connections == 0 && s.Memory.Reserved == 0
	})
	for _, code := range []string{"TIMEOUT", "CLOCK_BACKWARD"} {
		if n := counted(t, r, code); n != 0 {
			t.Errorf("it has waited to the end: %s %v", code, n)
		}
	}
}

// TestAddressQuota: without a UID an address is the user.
func TestAddressQuota(t *testing.T) {
	r := start(t, doortest.Options{TCP: true, Limits: daemon.Limits{MaxConnections: 1}})
	first := dial(t, r)
	first.get("id")
	if got := dial(t, r).line(); !strings.HasPrefix(got, "SERVER_ERROR OVERLOADED: ") || !strings.Contains(got, "max_connections_per_user") {
		t.Error(got)
	}
}

// TestErrors: what NextID would be answered.
func TestErrors(t *testing.T) {
	r := start(t, doortest.Options{Provider: "none:", Fallback: config.FallbackNone})
	p := dial(t, r)
	p.send("get id\r\n")
	if got := p.line(); !strings.HasPrefix(got, "SERVER_ERROR NO_PROVIDER: ") {
		t.Error(got)
	}
	p.send("version\r\n")
	p.line()
	r = start(t, doortest.Options{Provider: "none:"})
	p = dial(t, r)
	if id := p.get("id")[0]; !snowflake.DefaultTimeline().IsFallback(id) {
		t.Errorf("%d is a regular ID, and there is no provider", id)
	}
}

// TestStop: requests under way are answered, and connections end.
func TestStop(t *testing.T) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	r := start(t, doortest.Options{Clock: fake})
	idle, half, busy := dial(t, r), dial(t, r), dial(t, r)
	idle.useUp()
	half.send("get i")
	busy.send("get id\r\n")
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	r.Ending()
	idle.ends()
	half.ends()
	fake.Advance(time.Millisecond)
	busy.ids("id")
	busy.ends()
	r.Stop()
}

// TestStopOfABusyOne: a connection that always asks for more ends soon, and not with the drain.
func TestStopOfABusyOne(t *testing.T) {
	r := start(t, doortest.Options{})
	p := dial(t, r)
	p.get("id")
	r.Ending()
	for began := time.Now(); time.Since(began) < doortest.Patience/2; { // the drain takes all of it
		if _, err := p.Write([]byte("get id\r\n")); err != nil {
			return
		}
		if _, err := p.in.ReadString('\n'); err != nil {
			return
		}
	}
	t.Error("the drain does not end it")
}

// TestStopCuts: a request that waits for longer than a drain is told so.
func TestStopCuts(t *testing.T) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	o := doortest.Options{Clock: fake}
	o.DrainTimeout = time.Millisecond
	r := start(t, o)
	p := dial(t, r)
	p.useUp()
	p.send("get id\r\n")
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	r.Stop()
	if n := counted(t, r, "SHUTTING_DOWN"); n != 1 {
		t.Errorf("%v requests heard of the stop", n)
	}
}

// FuzzLines: after any bytes of a peer, its connection ends when it has sent all, and another one
// is served.
func FuzzLines(f *testing.F) {
	r := start(f, doortest.Options{Services: []string{"orders"}})
	for _, seed := range []string{
		"", "get id\r\n", "get id id1 orders:7\r\ngets orders\r\n", "get nothing\r\nversion\n", "stats\r\nquit\r\nget id\r\n",
		"set a 0 0 1\r\nx\r\n", "GET / HTTP/1.1\r\n\r\n", "get \x00\r\n", "\n\n\r\n", "get " + strings.Repeat("id ", 100) + "\r\n", "\x80\x00\x00",
		strings.Repeat("x", 5000), "get id", "\x80tats\nversion\n",
	} {
		f.Add([]byte(seed), uint16(3))
	}
	f.Fuzz(func(t *testing.T, sent []byte, cut uint16) {
		if len(sent) > 2*maxLine {
			t.Skip()
		}
		p := dial(t, r)
		half := min(int(cut), len(sent))
		_, _ = p.Write(sent[:half])
		_, _ = p.Write(sent[half:])
		_ = p.Conn.(*net.UnixConn).CloseWrite()
		for {
			_, err := p.in.ReadString('\n')
			if os.IsTimeout(err) {
				t.Fatal("the connection does not end")
			}
			if err != nil {
				break
			}
		}
		_ = p.Close()
		dial(t, r).get("id")
	})
}

// TestPeerThatDoesNotRead: its answers are made as it reads them, others are served
// meanwhile, and it is forgotten once it has gone.
func TestPeerThatDoesNotRead(t *testing.T) {
	o := doortest.Options{}
	o.MemoryLimit = 64 << 20
	r := start(t, o)
	p := dial(t, r)
	line := "get" + strings.Repeat(" id", 2000) + "\r\n"
	_ = p.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	sent := 0
	for err := error(nil); err == nil; {
		var n int
		n, err = p.Write([]byte(line))
		sent += n
	}
	if most := 16 << 20; sent > most {
		t.Fatalf("it has taken %d bytes of requests", sent)
	}
	dial(t, r).get("id")
	_ = p.SetDeadline(time.Now().Add(doortest.Patience))
	keys := strings.Fields(line)[1:]
	for range sent / len(line) {
		p.ids(keys...)
	}
	_ = p.Close()
	await.Eventually(t, "it is forgotten", func() bool { return r.Server.Status().Connections <= 1 })
}

// TestHalfClosedPeerThatDoesNotRead: a connection is closed when its peer sends no more, and the
// peer still reads its answers.
func TestHalfClosedPeerThatDoesNotRead(t *testing.T) {
	o := doortest.Options{}
	o.MemoryLimit = 64 << 20
	r := start(t, o)
	p := dial(t, r)
	p.send("get id\r\n")
	must.Succeed(t, p.Conn.(*net.UnixConn).CloseWrite())
	await.Eventually(t, "it does not count any more", func() bool { return r.Server.Status().Connections == 0 })
	p.ids("id")
	p.ends()
}
