package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/browser"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// picturesDir has the pages' tests write the pictures of docs/status-page.md.
var picturesDir = flag.String("pictures", "", "write the pictures of the status pages into this `directory`")

// The windows in which pages are looked at.
var (
	desk  = browser.View{Width: 1160, Height: 900}
	night = browser.View{Width: 1160, Height: 900, Dark: true}
	phone = browser.View{Width: 360, Height: 780, Mobile: true}
)

// picture keeps what the tab shows, where pictures are wanted. They name the
// directories of a real installation.
func (s *site) picture(tab *browser.Tab, name string) {
	s.T.Helper()
	if *picturesDir == "" {
		return
	}
	// No answer must bring the names back before the picture is taken.
	tab.Eval(`(() => { window.asks = window.fetch; window.fetch = () => new Promise(() => {}); return new Promise((done) => setTimeout(done, 1500)); })()`, nil)
	tab.Eval(fmt.Sprintf(`(() => {
		const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		const names = [[%q, "/run/kazahana/kazahanad.sock"], [%q, "/var/lib/kazahana"], [%q, "/var/lib/kazahana"], [" on " + %q, " on web-01.example.net"]];
		while (walk.nextNode()) for (const [a, b] of names) walk.currentNode.nodeValue = walk.currentNode.nodeValue.replaceAll(a, b);
	})()`, s.Socket, s.State, s.Dir, thisHost()), nil)
	err := os.WriteFile(filepath.Join(*picturesDir, name+".png"), tab.Picture(0), 0o644)
	tab.Call("Page.reload", map[string]any{}, nil)
	tab.Await(`window.asks === undefined && document.querySelector("#main:not([hidden])")`)
	must.Succeed(s.T, err)
}

// clean fails if something went wrong in the tab, or it asked anybody else.
func clean(t *testing.T, tab *browser.Tab, origin string, but ...string) {
	t.Helper()
problems:
	for _, problem := range tab.Problems() {
		for _, known := range but {
			if strings.Contains(problem, known) {
				continue problems
			}
		}
		t.Errorf("the page's console has %q", problem)
	}
	for _, url := range tab.Asked() {
		if !strings.HasPrefix(url, origin+"/") && !strings.HasPrefix(url, "data:") {
			t.Errorf("the page asks %s", url)
		}
	}
}

// readable looks at the page in all windows: nothing is cut off on a phone, and
// text stands out in both schemes.
func readable(t *testing.T, tab *browser.Tab) {
	t.Helper()
	for _, v := range []browser.View{desk, phone, {Width: 400, Height: 800, Mobile: true}, night, {Width: 360, Height: 780, Mobile: true, Dark: true}} {
		tab.Look(v)
		var wide struct{ Page, Window int }
		tab.Eval(`({Page: document.documentElement.scrollWidth, Window: document.documentElement.clientWidth})`, &wide)
		if wide.Page > wide.Window || wide.Window != v.Width {
			t.Errorf("%+v: the page is %d wide, the window %d", v, wide.Page, wide.Window)
		}
		if v.Mobile {
			var wrong []string
			tab.Eval(`[...document.querySelectorAll(".pools td, button, input:not([type=checkbox]), select")].flatMap((e) => {
				const r = e.getBoundingClientRect();
				if (r.width === 0) return [];
				const what = e.tagName + " " + (e.innerText || e.id);
				if (r.left < 0 || r.right > innerWidth) return [what + " is cut off"];
				return e.tagName !== "TD" && r.height < 40 ? [what + " is too small to be tapped"] : [];
			})`, &wrong)
			for _, one := range wrong {
				t.Errorf("%+v: %s", v, one)
			}
		}
		var contrast map[string]float64
		tab.Eval(`(() => {
			const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
			const light = (name) => {
				canvas.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
				canvas.fillRect(0, 0, 1, 1);
				const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
				return 0.2126 * r + 0.7152 * g + 0.0722 * b;
			};
			const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
			const pairs = [["--ink", "--card"], ["--soft", "--card"], ["--soft", "--paper"], ["--blue", "--card"], ["--red", "--red-soft"], ["--ink", "--red-soft"], ["--blue", "--blue-soft"], ["--orange-ink", "--orange-soft"], ["--orange-ink", "--card"]];
			return {...Object.fromEntries(pairs.map(([a, b]) => [a + " on " + b, ratio(a, b)])), "paper's light": light("--paper")};
		})()`, &contrast)
		for pair, ratio := range contrast {
			if pair == "paper's light" {
				if v.Dark != (ratio < 0.1) {
					t.Errorf("%+v: the paper's light is %.2f", v, ratio)
				}
			} else if ratio < 4.5 { // WCAG 2, AA
				t.Errorf("%+v: %s has a contrast of %.1f", v, pair, ratio)
			}
		}
	}
	tab.Look(desk)
}

// delays has the page remember for how long it waits.
const delays = `(() => { window.delays = []; const wait = window.setTimeout; window.setTimeout = (f, ms) => { window.delays.push(ms); return wait(f, ms); }; })()`

func (s *site) statusFromCLI() (st daemon.Status) {
	s.T.Helper()
	testkit.DecodeJSON(s.T, s.Kazahanad("status", "--json").OK(s.T), &st)
	return st
}

// TestStatusPages looks at the pages in one browser.
func TestStatusPages(t *testing.T) {
	t.Parallel()
	b := browser.Start(t)
	for name, look := range map[string]func(*testing.T, *browser.Browser){
		"daemon": lookAtDaemon, "daemon in an outage": lookAtOutage, "without scripts": lookWithoutScripts,
		"lease server": lookAtLeaseServer, "hostile names": lookAtHostileNames,
		"held back": lookAtFence,
		"placement": lookAtPlacement,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			look(t, b)
		})
	}
}

// The daemon's page shows what the daemon is, follows it, and outlives it.
func lookAtDaemon(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	address := testkit.FreeAddress(t)
	origin := "http://" + address
	d := s.Start("--admin-listen", address)
	c := s.Dial()
	c.IDs(1234)
	tab := b.Open(t, origin+"/", desk)
	tab.Await(`document.querySelector("#live").dataset.state === "live"`)

	st := s.statusFromCLI()
	svc := st.Services[0]
	var noMore bool
	if tab.Eval(`document.querySelector(".more-leases").hidden && document.querySelector("#placement").hidden`, &noMore); !noMore {
		t.Error("the page tells of leases that it does not show, or of placement, which is off")
	}
	for selector, want := range map[string][]string{
		"#mode":           {"Regular", st.Scope, st.Promise},
		".service":        {"Service default", "regular", "cached fallback", "random fallback"},
		".lease":          {fmt.Sprintf("Machine ID %d", svc.Leases[0].MachineID), fmt.Sprintf("%d/%d bits", svc.Leases[0].BitID, svc.Leases[0].BitSeq), "ends in", "is replaced in"},
		".service .facts": {time.UnixMilli(svc.ExhaustedMS).UTC().Format(time.DateOnly), "never", "1 ok"},
		"#facts":          {st.Provider, st.Socket, st.StateDir, "on its course"},
		"#answers":        {"NextIDs"},
		"#events":         {"scope of uniqueness"},
		"footer":          {st.Version, fmt.Sprintf("process %d", st.PID), st.Commit[:12]},
	} {
		text := tab.Text(selector)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s says %q, want %q in it", selector, text, w)
			}
		}
	}
	// The bar shows the rest of the lease.
	var left float64
	tab.Eval(`parseFloat(document.querySelector(".lease .fill").style.width)`, &left)
	if l := svc.Leases[0]; left > 100 || left < 50 || l.ExpiredMS-l.CreatedMS != 600_000 {
		t.Errorf("the bar has %v%% left, of %+v", left, l)
	}

	// It follows the issued IDs.
	tab.Await(`document.querySelector('.legend [data-kind="regular"]')?.innerText.includes("1,234 in all")`)
	c.IDs(50_000)
	c.Must("Lock.Acquire", nil, "nightly-report", map[string]any{"hold": "connection"})
	tab.Await(`document.querySelector('#figures [data-key="Locks held"] dd span').innerText === "1"`)
	tab.Await(`document.querySelector('.legend [data-kind="regular"]').innerText.includes("51,234 in all")`)
	tab.Await(`document.querySelector('.chart path[data-kind="regular"]')`)
	readable(t, tab)
	clean(t, tab, origin)

	// It asks less often while it is hidden.
	tab.Eval(delays, nil)
	tab.Await(`delays.includes(1000)`)
	tab.Eval(`Object.defineProperty(document, "hidden", {configurable: true, get: () => true})`, nil)
	tab.Await(`delays.includes(15000)`)
	tab.Eval(`delete document.hidden, document.dispatchEvent(new Event("visibilitychange"))`, nil)

	// It says so when the daemon is away, and goes on by itself when that is back.
	d.Terminate()
	tab.Await(`document.querySelector("#live").dataset.state === "lost"`)
	tab.Await(`/^Connection lost since \d\d:\d\d:\d\d, retrying/.test(document.querySelector("#lost:not([hidden])")?.innerText)`)
	tab.Await(`[1000, 2000, 4000].every((ms) => delays.includes(ms))`)
	if st.PID == s.Start("--admin-listen", address).PID() {
		t.Fatal("the same process")
	}
	tab.Await(`document.querySelector("#live").dataset.state === "live" && document.querySelector("#lost").hidden`)
	after := s.statusFromCLI()
	tab.Await(fmt.Sprintf(`document.querySelector("footer").innerText.includes("process %d")`, after.PID))
	tab.Await(`Array.isArray(window.delays)`) // it was not loaded again
	clean(t, tab, origin, "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_SOCKET_NOT_CONNECTED")
}

// Without a lease the page says what there is instead, and why.
func lookAtOutage(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	address := testkit.FreeAddress(t)
	// The quarantine is long, so that the fallback stays certain for as long as the test takes.
	s.Start(s.Brief("--admin-listen", address, "--provider", "sqlite:"+s.Leases()+"?term=2s&quarantine=10m")...)
	c := s.Dial()
	c.IDs(100)
	tab := b.Open(t, "http://"+address+"/", desk)
	tab.Await(`document.querySelector("#mode-name")?.innerText === "Regular"`)
	mend := s.moveAway()
	c.AwaitMode("fallback_cached")
	c.IDs(100)
	tab.Await(`document.querySelector("#mode").dataset.tone === "warn" && document.querySelector("#mode-name").innerText.startsWith("Fallback")`)
	tab.Await(fmt.Sprintf(`document.querySelector("#mode-cause").innerText.includes(%q)`, s.Leases()))
	tab.Await(`document.querySelector(".lease[data-state=cached]")?.innerText.includes("cached for fallback")`)
	tab.Await(fmt.Sprintf(`document.querySelector('.legend [data-kind="fallback_cached"]').innerText.includes("%d in all")`, c.Status().Services[0].Issued.FallbackCached))
	tab.Await(`document.querySelectorAll("#events li").length > 1 && document.title.startsWith("⚠")`)
	mend()
	c.AwaitMode("regular")
	tab.Await(`document.querySelector("#mode-name").innerText === "Regular" && document.querySelector("#mode-cause").hidden`)
	clean(t, tab, "http://"+address)
}

// Without scripts the page says where else to look.
func lookWithoutScripts(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	address := testkit.FreeAddress(t)
	s.Start("--admin-listen", address)
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.Path("server.db"))
	v := phone
	v.NoScript = true
	for url, want := range map[string]string{"http://" + address + "/": "kazahanad status", server.URL() + "/": "kazahanad leases"} {
		tab := b.Open(t, url, v)
		tab.Await(fmt.Sprintf(`document.body?.innerText.includes(%q)`, want))
		clean(t, tab, strings.TrimSuffix(url, "/"))
	}
}

// /status.json is status --json and more, and is not for pages of a site with a name that was
// made to mean this address.
func TestDaemonPageData(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	address := testkit.FreeAddress(t)
	s.Start("--admin-listen", address)
	c := s.Dial()
	c.IDs(10)
	get := func(host, path string) (*http.Response, map[string]json.RawMessage) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		must.Succeed(t, err)
		r.Host = host
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Patience}
		answer, err := client.Do(r)
		must.Succeed(t, err)
		defer answer.Body.Close()
		var out map[string]json.RawMessage
		_ = json.NewDecoder(answer.Body).Decode(&out)
		return answer, out
	}
	answer, page := get("localhost", "/status.json")
	if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", answer.StatusCode, answer.Header)
	}
	var fromCLI map[string]json.RawMessage
	testkit.DecodeJSON(t, s.Kazahanad("status", "--json").OK(t), &fromCLI)
	for name := range fromCLI {
		if page[name] == nil {
			t.Errorf("/status.json lacks %s", name)
		}
	}
	for _, name := range []string{"host", "history", "events", "counters", "placement"} {
		if page[name] == nil {
			t.Errorf("/status.json lacks %s", name)
		}
	}
	if counters := string(page["counters"]); !strings.Contains(counters, `"kazahana_ids_issued_total":[`) || strings.Contains(counters, `"go_goroutines"`) {
		t.Errorf("counters: %s", counters)
	}
	for _, path := range []string{"/", "/status.json", "/metrics", "/healthz"} {
		if answer, _ := get("evil.example", path); answer.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s is given to evil.example: %d", path, answer.StatusCode)
		}
		if answer, _ := get(address, path); answer.StatusCode != http.StatusOK || answer.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v", path, answer.StatusCode, answer.Header)
		}
		if got := statusWithoutHost(t, "tcp", address, path); got != http.StatusOK {
			t.Errorf("%s without Host: %d", path, got)
		}
	}
}

// TestPictures takes the pictures of docs/status-page.md, where they are wanted:
// make pictures.
func TestPictures(t *testing.T) {
	if *picturesDir == "" {
		t.Skip("no -pictures DIRECTORY was given: make pictures")
	}
	s := newSite(t)
	b := browser.Start(t)
	address := testkit.FreeAddress(t)
	s.Start("--admin-listen", address, "--provider", "sqlite:"+s.Leases()+"?term=80s&quarantine=80s",
		"--acquire-retry-interval", "1s", "--acquire-retry-max-interval", "2s")
	c := s.Dial()
	other := s.Dial()
	other.Must("Lock.Acquire", nil, "nightly-report", map[string]any{"hold": "connection"})
	began, done := time.Now(), make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() { // a day in three minutes
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
			at := time.Since(began)
			c.IDs(200 + int(at.Seconds())%7*20 + max(0, 200-2*int((at-100*time.Second).Abs().Seconds())))
		}
	})
	time.Sleep(50 * time.Second)
	mend := s.moveAway() // until after the end of the lease
	time.Sleep(80 * time.Second)
	mend()
	time.Sleep(60 * time.Second)
	tab := b.Open(t, "http://"+address+"/", desk)
	for name, v := range map[string]browser.View{"daemon": desk, "daemon-dark": night, "daemon-phone": phone} {
		tab.Look(v)
		tab.Await(`document.querySelector("#live").dataset.state === "live"`)
		tab.Await(`document.querySelector(".chart path")`)
		s.picture(tab, name)
	}
	close(done)
	load.Wait()
}
