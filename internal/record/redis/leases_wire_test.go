package redis_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// monitor returns what the server is sent while do runs, as MONITOR shows it, and the dump of all
// keys then.
func monitor(t *testing.T, s *redistest.Server, do func()) string {
	t.Helper()
	conn, err := net.Dial("unix", s.Sock)
	must.Succeed(t, err)
	defer conn.Close()
	must.Succeed(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Write([]byte("MONITOR\r\n"))
	must.Succeed(t, err)
	lines := bufio.NewReader(conn)
	_, err = lines.ReadString('\n') // OK
	must.Succeed(t, err)
	do()
	s.Do(t, "ECHO", "that was all")
	var all strings.Builder
	for !strings.Contains(all.String(), "that was all") {
		line, err := lines.ReadString('\n')
		must.Succeed(t, err)
		all.WriteString(line)
	}
	return all.String()
}

// The secret of a lease is neither sent to the server nor kept there.
func TestSecretIsNotOnTheWire(t *testing.T) {
	s := redistest.New(t)
	p := newPool(t, s)
	p.acquire(p.provider) // the pool's first grant makes its key
	var secrets []string
	text := monitor(t, s, func() {
		l := p.acquire(p.provider)
		for range 3 {
			if p.lost(p.provider, l) != 0 {
				t.Error("it is lost")
			}
		}
		next := p.acquire(p.provider)
		p.clock.Add(1)
		longer, err := provider.Extend(p.context(), p.provider, "", l)
		must.Succeed(t, err)
		for range 2 {
			must.Succeed(t, p.provider.Release(p.context(), providertest.SignedRelease(longer, p.clock.Load())))
		}
		secrets = []string{l.Secret, next.Secret}
	})
	if n := strings.Count(strings.ToLower(text), "evalsha"); n < 10 {
		t.Errorf("only %d scripts were seen", n)
	}
	raw := s.Raw()
	defer raw.Close()
	keys, err := raw.Keys(p.context(), "*").Result()
	must.Succeed(t, err)
	for _, key := range keys {
		value, _ := raw.Get(p.context(), key).Result()
		text += key + value
	}
	for _, secret := range secrets {
		bytes, err := hex.DecodeString(secret)
		must.Succeed(t, err)
		shown := strings.Trim(fmt.Sprintf("%q", bytes), `"`)
		for _, form := range []string{secret, strings.ToUpper(secret), string(bytes), shown, monitored(bytes)} {
			if strings.Contains(text, form) { // seed 000-4.5-1
				t.Errorf("the secret is seen as %q", form)
			}
		}
	}
}

// monitored is how MONITOR shows bytes.
func monitored(b []byte) string {
	var s strings.Builder
	for _, c := range b {
		switch {
		case c == '\\' || c == '"':
			s.WriteString(`\` + string(c))
		case strings.ContainsRune("\n\r\t\a\b", rune(c)):
			s.WriteString(strings.Trim(strconv.Quote(string(c)), `"`))
		case c >= 0x20 && c < 0x7f:
			s.WriteByte(c)
		default:
			fmt.Fprintf(&s, `\x%02x`, c)
		}
	}
	return s.String()
}

var commandCalls = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)`)

// commands is how often the server was asked by clients, and how many commands it has run.
func commands(t *testing.T, s *redistest.Server) (scripts, all int) {
	for _, m := range commandCalls.FindAllStringSubmatch(s.Do(t, "INFO", "commandstats"), -1) {
		n, _ := strconv.Atoi(m[2])
		switch all += n; m[1] {
		case "eval", "evalsha", "wait":
			scripts += n
		}
	}
	return scripts, all
}

// A single acquire takes three round trips at most, one of which looks at the server as a whole,
// once a second. The server's work for it depends neither on the size of the layout nor on how
// many leases are alive.
func TestAcquireTakesThreeRoundTrips(t *testing.T) {
	huge := provider.DefaultTerms()
	huge.Timeline.BitTS, huge.Timeline.EpochMS = 33, testTime-1000
	huge = huge.WithBitSeq(0)
	for name, terms := range map[string]provider.Terms{"8,192 machine IDs": provider.DefaultTerms(), "2^29 machine IDs": huge} {
		t.Run(name, func(t *testing.T) {
			s := redistest.New(t)
			p := newPool(t, s, func(o *options) { o.services.Default = terms })
			p.acquire(p.provider)
			most := 0
			for i := range 600 {
				scripts, all := commands(t, s)
				p.acquire(p.provider)
				scriptsNow, allNow := commands(t, s)
				if n := scriptsNow - scripts; n > 3 { // seed 003-4.3-1
					t.Fatalf("acquire %d takes %d round trips", i, n)
				}
				most = max(most, allNow-all)
				if i%100 == 0 {
					p.clock.Add(1)
				}
			}
			t.Logf("%d commands at most", most)
			if most > 80 {
				t.Errorf("an acquire runs %d commands", most)
			}
		})
	}
}

// A pool is granted to its last machine ID. redis-cli shows its records in order.
func TestNearlyFullPool(t *testing.T) {
	s := redistest.New(t)
	p := newPool(t, s, func(o *options) { o.services.Default.IDs = provider.IDRange{Low: 0, End: 640} })
	seen := map[int64]lease.Lease{}
	for range 640 {
		l := p.acquire(p.provider)
		if other, taken := seen[l.ID]; taken {
			t.Fatalf("%v was granted over %v", l, other)
		}
		seen[l.ID] = l
	}
	if records, err := p.provider.List(p.context(), ""); err != nil || len(records) != 640 || !slices.IsSortedFunc(records, provider.CompareRecords) {
		t.Errorf("%d records (%v), or not in the order of their IDs", len(records), err)
	}
	shown := strings.Fields(strings.Trim(s.Do(t, "ZRANGE", p.options.Prefix+"@leases:list", 0, -1), "[]"))
	blocks := slices.DeleteFunc(slices.Clone(shown), func(key string) bool { return !strings.HasPrefix(key, "block/default/") })
	for i, key := range blocks {
		// Seed 001-17.
		if n, err := strconv.ParseInt(key[strings.LastIndex(key, "/")+1:], 16, 64); err != nil || n != int64(i) {
			t.Errorf("%s is shown as number %d", key, i)
		}
	}
	if len(blocks) != 640/16 { // seed 000-6.1-2
		t.Errorf("shown are %q", shown)
	}
}
