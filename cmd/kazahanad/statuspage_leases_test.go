package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/browser"
)

const (
	adminToken = "token-of-the-operator-for-tests"
	hostToken  = "token-of-the-hosts-for-tests"
)

// adminAndLeases is a token for what the command line asks.
const adminAndLeases = "token-of-the-command-line-for-tests"

// startPageServer runs a lease server with several pools and tokens.
func (s *site) startPageServer(address string, more ...string) *testkit.LeaseServer {
	s.T.Helper()
	testkit.WriteFile(s.T, s.Path("tokens.yaml"), fmt.Sprintf("- {token: %s, owner: operator, scopes: [admin]}\n- {token: %s, owner: hosts, scopes: [leases]}\n"+
		"- {token: %s, owner: cli, scopes: [leases, admin]}\n", adminToken, hostToken, adminAndLeases))
	testkit.WriteFile(s.T, s.Path("server.yaml"), "services:\n  batch: {term: 2s, quarantine: 10m}\n  imports: {pool: imports, ids: 0-99}\n"+
		"  wide: {pool: wide, bit_id: 21, bit_seq: 1}\n")
	return s.StartLeaseServerWith(s.Path("server.yaml"), address, append([]string{"--provider", "sqlite:" + s.Leases(), "--tokens-file", s.Path("tokens.yaml")}, more...)...)
}

// hostTokenFile is a file with the token of the hosts.
func (s *site) hostTokenFile() string {
	testkit.WriteFile(s.T, s.Path("host-token"), hostToken+"\n")
	return s.Path("host-token")
}

// granted has the host take leases.
func granted(l *testkit.LeaseServer, service, host string, leases int) []lease.Lease {
	l.T.Helper()
	each := 256 // IDs per ms
	if service == "wide" {
		each = 2
	}
	var out leaseapi.AcquireResponse
	throughput := int64(leases * each)
	l.Asked("POST", "/lease", hostToken, leaseapi.AcquireRequest{
		ServiceID: service, Meta: map[string]string{"host": host, "pid": "4711"}, ThroughputPerMS: &throughput,
	}, &out)
	if len(out.Leases) != leases {
		l.T.Fatalf("%d leases, want %d", len(out.Leases), leases)
	}
	return out.Leases
}

// cellOf is where the map's canvas shows the machine ID, in pixels of the window.
// It reads the canvas as a person does: cells stand in rows of equal squares.
func cellOf(tab *browser.Tab, id, from, ids int64) (x, y float64) {
	var at struct{ X, Y, W, H float64 }
	tab.Eval(`(() => {
		const map = document.querySelector("#map");
		map.scrollIntoView({block: "center"});
		const r = map.getBoundingClientRect();
		return {X: r.x, Y: r.y, W: r.width, H: r.height};
	})()`, &at)
	columns := int64(1)
	for size := at.W; float64((ids+columns-1)/columns)*size > at.H; size = min(26, at.W/float64(columns)) {
		columns *= 2
	}
	size := min(26, at.W/float64(columns))
	return at.X + (float64((id-from)%columns)+0.5)*size, at.Y + (float64((id-from)/columns)+0.5)*size
}

// giveToken types the token that the page asks for.
func giveToken(tab *browser.Tab, token string) {
	tab.Await(`document.activeElement === document.querySelector("#token-text") && document.querySelector("#token-text").value === ""`)
	tab.Type(token)
	tab.Await(fmt.Sprintf(`document.querySelector("#token-text").value === %q`, token))
	tab.Press("Enter")
}

const detail = `document.querySelector("#map-detail").innerText`

// The lease server's page asks for a token, shows the pools and their slots,
// tells holders, and finds who made an ID.
func lookAtLeaseServer(t *testing.T, b *browser.Browser) {
	s := newSite(t)
	server := s.startPageServer(testkit.FreeAddress(t))
	for i := range 40 {
		granted(server, "", fmt.Sprintf("web-%02d.example.net", i), 20)
	}
	crashed := granted(server, "batch", "batch-01.example.net", 60)
	granted(server, "imports", "import-01.example.net", 37)
	wide := granted(server, "wide", "wide-01.example.net", 1)[0]
	outside := granted(server, "wide", "wide-02.example.net", 1)[0]
	for outside.ID/128 == wide.ID/128 {
		outside = granted(server, "wide", "wide-02.example.net", 1)[0]
	}

	tab := b.Open(t, server.URL()+"/", desk)
	tab.Await(`document.querySelector("#token:not([hidden])") && document.querySelector("#main").hidden`)
	giveToken(tab, hostToken)
	tab.Await(`document.querySelector("#token-why").innerText.includes('does not have the scope "admin"')`)
	giveToken(tab, adminToken)
	tab.Await(`document.querySelector("#main:not([hidden])") && document.querySelector("#token").hidden`)
	clean(t, tab, server.URL(), "status of 401", "status of 403")
	tab.Await(`sessionStorage.length === 1 && localStorage.length === 0 && document.cookie === ""`)

	// The pools, as leases --json has them once the batch's short leases are over.
	tab.Await(`document.querySelector('#pools tr[data-key="default"] td:nth-child(4)').innerText === "60"`)
	testkit.WriteFile(t, s.Path("token"), adminAndLeases)
	for service, pool := range map[string]string{"default": "default", "imports": "imports"} {
		var report leasesReport
		testkit.DecodeJSON(t, s.Kazahanad("leases", "--json", "--service", service, "--provider", server.URL()+"?token_file="+s.Path("token")).OK(t), &report)
		var cells []string
		tab.Eval(fmt.Sprintf(`[...document.querySelectorAll('#pools tr[data-key="%s"] td.n')].map((td) => td.innerText.replace(",", ""))`, pool), &cells)
		if want := []string{fmt.Sprint(report.UsingIDs), fmt.Sprint(report.QuarantinedIDs)}; !slices.Equal(cells[:2], want) {
			t.Errorf("pool %s: the page has %v leased and quarantined, leases --json %v", pool, cells[:2], want)
		}
	}
	tab.Await(`document.querySelector("#figures").innerText.includes("not known yet: watched for")`)

	// The map.
	tab.Await(`document.querySelector("#map-title").innerText === "Slots of pool default"`)
	x, y := cellOf(tab, crashed[7].ID, 0, 8192)
	tab.Point(x, y)
	tab.Await(fmt.Sprintf(`%s.startsWith("Machine ID %d: quarantined, of batch-01.example.net, process 4711, service batch")`, detail, crashed[7].ID))
	last := granted(server, "", "late.example.net", 1)[0]
	x, y = cellOf(tab, last.ID, 0, 8192)
	tab.Point(x, y)
	tab.Await(fmt.Sprintf(`%s.startsWith("Machine ID %d: leased to late.example.net")`, detail, last.ID))
	tab.Eval(`document.querySelector("#map").focus()`, nil)
	tab.Press("Home")
	tab.Await(detail + `.startsWith("Machine ID 0: ")`)
	tab.Press("ArrowRight")
	tab.Await(detail + `.startsWith("Machine ID 1: ")`)
	tab.Press("Escape")
	tab.Await(detail + `.startsWith("Point at a slot")`)
	s.picture(tab, "lease-server")

	// The search.
	search := func(what, text string, wants ...string) {
		t.Helper()
		tab.Eval(fmt.Sprintf(`(() => {
			document.querySelector("#search-answer").replaceChildren();
			document.querySelector("#search-what").value = %q;
			document.querySelector("#search-text").value = %q;
			document.querySelector("#search-form").requestSubmit();
		})()`, what, text), nil)
		tab.Await(`document.querySelector("#search-answer").innerText !== ""`)
		for _, want := range wants {
			if got := tab.Text("#search-answer"); !strings.Contains(got, want) {
				t.Errorf("search for %s %s: %q, want %q in it", what, text, got, want)
			}
		}
	}
	id := last.Timeline().ID(last.Created+1, last.Slot().Start+5)
	var codec snowflake.Codec
	for _, text := range []string{fmt.Sprint(int64(id)), fmt.Sprintf("0x%x", int64(id)), codec.Encode(id)} {
		search("id", text, "late.example.net", "4711", fmt.Sprintf("%d is a regular ID of", int64(id)), fmt.Sprintf("machine ID %d, sequence 5", last.ID))
	}
	search("id", "nonsense", "The server says: the parameter id")
	search("host", "WEB-07", "20 found in pool default", "web-07.example.net")
	search("host", "<b>nobody", "Nobody found")
	search("machine", fmt.Sprint(last.ID), "1 found", "late.example.net", "leased")
	tab.Eval(`document.querySelector("#search-answer button").click()`, nil)
	tab.Await(fmt.Sprintf(`%s.startsWith("Machine ID %d: leased to late.example.net")`, detail, last.ID))

	// A pool of a million slots is looked into part by part.
	tab.Eval(`document.querySelector('#pools tr[data-key="wide"] button').click()`, nil)
	tab.Await(`document.querySelector("#map-title").innerText === "Slots of pool wide"`)
	tab.Await(`document.querySelector("#trail").innerText.includes("128 in each cell")`)
	x, y = cellOf(tab, wide.ID/128, 0, 8192)
	tab.Point(x, y)
	tab.Await(detail + `.includes("wide-01.example.net")`)
	tab.Click(x, y)
	part := wide.ID / 128 * 128
	tab.Await(`document.querySelector("#trail button")?.innerText.startsWith("all, 0 to 1,048,575")`)
	tab.Await(`!document.querySelector("#trail").innerText.includes("in each cell")`)
	x, y = cellOf(tab, wide.ID, part, 128)
	tab.Point(x, y)
	tab.Await(fmt.Sprintf(`%s.startsWith("Machine ID %d: leased to wide-01.example.net")`, detail, wide.ID))
	// A search for a slot outside of this part leads out of it.
	search("machine", fmt.Sprint(outside.ID), "1 found", "wide-02.example.net")
	tab.Eval(`document.querySelector("#search-answer button").click()`, nil)
	tab.Await(`document.querySelector("#trail").innerText.includes("128 in each cell")`)
	tab.Await(detail + `.includes("wide-02.example.net")`)

	tab.Eval(`document.querySelector('#pools tr[data-key="default"] button').click()`, nil)
	tab.Await(`document.querySelector("#map-title").innerText === "Slots of pool default"`)
	tab.Eval(`document.querySelector("#search-answer button").innerText = "1048575"`, nil) // no machine ID is wider
	readable(t, tab)
	clean(t, tab, server.URL(), "status of 400") // of the search for nonsense
}

// onlyText fails where a name has become an element of the page.
func onlyText(t *testing.T, tab *browser.Tab) {
	t.Helper()
	var made struct {
		Elements int
		Title    string
	}
	tab.Eval(`({Elements: document.querySelectorAll("img, main script, [onerror]").length, Title: document.title})`, &made)
	if made.Elements != 0 || strings.Contains(made.Title, "xss") {
		t.Errorf("names have become elements: %+v", made)
	}
}

// The clients' words about themselves are text on the page, with any content.
func lookAtHostileNames(t *testing.T, b *browser.Browser) {
	const host, process = `<img src=x onerror=document.title="xss">`, `<script>document.title="xss"</script>&amp;`
	s := newSite(t)
	server := s.startPageServer(testkit.FreeAddress(t))
	var out leaseapi.AcquireResponse
	server.Asked("POST", "/lease", hostToken, leaseapi.AcquireRequest{
		Meta: map[string]string{"host": host, "pid": process, host: process},
	}, &out)
	id := out.Leases[0].ID
	tab := b.Open(t, server.URL()+"/", desk)
	giveToken(tab, adminToken)
	tab.Await(`document.querySelector('#pools tr[data-key="default"] td:nth-child(3)')?.innerText === "1"`)
	tab.Await(`document.querySelector("#map-title").innerText === "Slots of pool default"`)
	x, y := cellOf(tab, id, 0, 8192)
	tab.Point(x, y)
	tab.Await(fmt.Sprintf(`%s.startsWith(%q)`, detail, fmt.Sprintf("Machine ID %d: leased to %s, process %s, service default", id, host, process)))
	tab.Eval(`(() => {
		document.querySelector("#search-what").value = "host";
		document.querySelector("#search-text").value = "<IMG";
		document.querySelector("#search-form").requestSubmit();
	})()`, nil)
	tab.Await(fmt.Sprintf(`["#search-answer td:nth-child(2)", "#search-answer td:nth-child(3)"].map((at) => document.querySelector(at)?.innerText).join(" ") === %q`, host+" "+process))
	onlyText(t, tab)
	clean(t, tab, server.URL(), "status of 401")
}
