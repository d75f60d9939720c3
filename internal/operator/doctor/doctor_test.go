package doctor

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// levelsOf are the levels of all findings, in their order.
func levelsOf(r Report) string {
	var all []string
	for _, f := range r {
		all = append(all, string(f.Level))
	}
	return strings.Join(all, " ")
}

func want(t *testing.T, what string, r Report, levels string) {
	t.Helper()
	if got := levelsOf(r); got != levels {
		t.Errorf("%s: %q, want %q: %+v", what, got, levels, r)
	}
}

func TestClock(t *testing.T) {
	good := Clock{Known: true, Synchronised: true, Compared: "x"}
	for _, c := range []struct {
		change func(*Clock)
		want   string
	}{
		{func(*Clock) {}, "ok"},
		{func(c *Clock) { c.Known = false }, "unknown"},
		{func(c *Clock) { c.Synchronised = false }, "warn"},
		{func(c *Clock) { c.Ahead = time.Second }, "warn"},
		{func(c *Clock) { c.Ahead, c.Within = time.Second, time.Second }, "ok"},
		{func(c *Clock) { c.Ahead = -time.Minute }, "fail"},
		{func(c *Clock) { c.Ahead, c.Compared = time.Minute, "" }, "ok"},
	} {
		clock, r := good, Report{}
		c.change(&clock)
		r.Clock(clock)
		want(t, fmt.Sprintf("%+v", clock), r, c.want)
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

func TestScope(t *testing.T) {
	for _, c := range []struct {
		scope string
		inPod bool
		want  string
	}{
		{"shared", true, "ok"}, {"host", false, "ok"}, {"host", true, "fail"}, {"none", false, "warn"}, {"unverified", false, "warn"},
	} {
		var r Report
		r.Scope(c.scope, "x", c.inPod)
		want(t, c.scope, r, c.want)
	}
}

func TestPrint(t *testing.T) {
	var r Report
	r.OK("config", "fine")
	r.Fail("state", "Mend it.", "%s is broken\nin two lines", "it")
	var out strings.Builder
	must.Succeed(t, r.Print(&out))
	const want = "ok    config  fine\nfail  state   it is broken; in two lines\n              -> Mend it.\n\n1 ok, 0 unknown, 0 warn, 1 fail\n"
	if out.String() != want || r.Of("") != Fail || r.Of("config") != OK {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func server(t *testing.T, tlsConfig *tls.Config, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(answer)
	s.TLS = tlsConfig
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it are its matter here
	if tlsConfig != nil {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.URL
}

func looked(t *testing.T, address, caFile string) (r Report, clock Clock, reached bool) {
	t.Helper()
	u, err := url.Parse(address)
	must.Succeed(t, err)
	reached = r.LeaseServers(t.Context(), httpconn.Config{Servers: []*url.URL{u}, CAFile: caFile}, &clock)
	return r, clock, reached
}

func ready(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/readyz" {
		http.Error(w, "that is no question", http.StatusTeapot)
	}
}

func answer(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, status) }
}

func TestLeaseServers(t *testing.T) {
	t.Parallel()
	good := server(t, nil, ready)
	r, clock, reached := looked(t, good, "")
	if want(t, "a good server", r, ""); !reached || clock.Compared != good {
		t.Errorf("reached: %v, and the clock was compared with that of %q", reached, clock.Compared)
	}
	for text, c := range map[string]struct {
		status int
		levels string
	}{
		"the store is away": {http.StatusServiceUnavailable, "fail"}, "no such path": {http.StatusNotFound, ""},
	} {
		r, _, reached = looked(t, server(t, nil, answer(c.status, text)), "")
		if want(t, text, r, c.levels); !reached {
			t.Errorf("%s: not reached", text)
		}
	}
	r, _, reached = looked(t, fmt.Sprintf("http://127.0.0.1:%d", ring.FreePort(t)), "")
	if want(t, "nobody there", r, "fail"); reached {
		t.Error("reached")
	}
	for off, level := range map[time.Duration]Level{time.Hour: Fail, -time.Hour: Fail, 10 * time.Second: Warn} {
		_, clock, _ = looked(t, server(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
		}), "")
		var r Report
		if r.Clock(clock); r[0].Level != level {
			t.Errorf("a clock that is %v ahead: %+v", off, r)
		}
	}
}

func TestLeaseServerCertificates(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t, "authority")
	certificate, err := tls.LoadX509KeyPair(authority.Issue("server"))
	must.Succeed(t, err)
	address := server(t, &tls.Config{Certificates: []tls.Certificate{certificate}}, ready)
	r, _, _ := looked(t, address, authority.File)
	want(t, "an authority that is known", r, "")
	r, _, _ = looked(t, address, "")
	want(t, "an authority that is not known", r, "fail")
}

// The daemon's user can read what its process gets: of root's environment that is what a start reads.
func TestEnvironmentForTheDaemonsUser(t *testing.T) {
	env := []string{"KAZAHANA_PROVIDER=memory:", "AWS_SECRET_ACCESS_KEY=hidden", "HOME=/root", "XDG_STATE_HOME=/s", "HOMEBREW=x", "SSH_AUTH_SOCK=/a", "LC_ALL=C"}
	want := []string{"KAZAHANA_PROVIDER=memory:", "HOME=/root", "XDG_STATE_HOME=/s", "LC_ALL=C"}
	if got := HandedOn(env); !slices.Equal(got, want) {
		t.Errorf("it gets %q, want %q", got, want)
	}
}
