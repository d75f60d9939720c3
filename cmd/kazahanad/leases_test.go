package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// listed is a record that was granted at base.
func listed(t provider.Terms, id, grantedMS int64, host string) provider.Record {
	l := t.Grant(id, grantedMS, "")
	return provider.Record{
		Lease: l, Service: "orders", End: l.ReservedUntil, Meta: map[string]string{"host": host, "pid": "12"},
	}
}

func TestLeasesTable(t *testing.T) {
	base := snowflake.DefaultEpochMS + 86_400_000
	terms := provider.DefaultTerms()
	released := listed(terms, 7, base-60_000, "c")
	released.Released, released.End = true, base+5_000
	all := []provider.Record{
		listed(terms, 3, base-60_000, "a\x1b[2J"),
		listed(terms, 4, base-660_000, ""),
		listed(terms, 5, base-3_000_000, "b"),
		released,
		listed(terms.WithBitSeq(10), 2, base-120_000, "d"),
	}
	var lines []leaseLine
	for _, r := range all {
		lines = append(lines, lineOf(r, base))
	}
	var out strings.Builder
	if err := showLeases(&out, "sqlite:/l.db", lines, provider.UsageOf(all, &terms, base), true, base); err != nil {
		t.Fatal(err)
	}
	// 3, 4 and 7 are taken, the latter two after their ends, and 8 to 11 by one
	// lease of a coarser layout.
	const want = `MACHINE ID  LAYOUT    HOST   PID  SERVICE  CREATED                   ENDS IN  STATE
3           41/14/8   a?[2J  12   orders   2026-01-01T23:59:00.000Z  9m0s     held
4           41/14/8   -      12   orders   2026-01-01T23:49:00.000Z  -        quarantined, free in 9m0s
5           41/14/8   b      12   orders   2026-01-01T23:10:00.000Z  -        ended
7           41/14/8   c      12   orders   2026-01-01T23:59:00.000Z  -        released, free in 5s
2           41/12/10  d      12   orders   2026-01-01T23:58:00.000Z  8m0s     held
sqlite:/l.db: 5 machine IDs in use, 2 in quarantine, 8185 free
`
	if out.String() != want { // seed 000-6.1-1
		t.Errorf("the table is\n%s, want\n%s", out.String(), want)
	}
}

// null stands for what the provider does not know, and every number has the name of seed 001.
func TestLeasesReport(t *testing.T) {
	st := &store{url: "memory:", service: "orders"}
	must.Succeed(t, st.open(t.Context()))
	defer st.Close()
	usage := provider.Usage{Held: 1, Free: 7, Total: 8, TTLMin: 480, TTLMid: 540, TTLMax: 600}
	counts := map[string]int64{"client_id_count": 0, "get_id_fenced": 1}
	for free, want := range map[bool]map[string]any{
		true:  {"unusing_ids": int64(7), "fullness": provider.Roomy},
		false: {"unusing_ids": nil, "fullness": ""},
	} {
		report := st.report([]leaseLine{}, usage, free, counts)
		maps.Copy(want, map[string]any{
			// Seed 001-8.
			"using_ids": int64(1), "quarantined_ids": int64(0), "using_ttl_min": int64(480), "using_ttl_mid": int64(540), "using_ttl_max": int64(600),
			// Seed 001-7.
			"client_id_count": int64(0), "extend_ttl_count": nil, "get_id_fenced": int64(1), "service": "orders",
		})
		for name, value := range want {
			if got, has := report[name]; !has || got != value {
				t.Errorf("%s is %v (%t), want %v", name, got, has, value)
			}
		}
	}
}

// leasesReport is what leases --json prints, as far as tests look at it.
type leasesReport struct {
	UnusingIDs         *int64      `json:"unusing_ids"`
	UsingIDs           int64       `json:"using_ids"`
	QuarantinedIDs     int64       `json:"quarantined_ids"`
	UsingTTLMax        int64       `json:"using_ttl_max"`
	ClientIDCount      *int64      `json:"client_id_count"`
	ClientGetIDSuccess *int64      `json:"client_get_id_success"`
	ExtendTTLSuccess   *int64      `json:"extend_ttl_success"`
	Leases             []leaseLine `json:"leases"`
}

// leasesJSON is what leases --json says of the site's default provider.
func (s *site) leasesJSON(args ...string) (r leasesReport) {
	s.T.Helper()
	testkit.DecodeJSON(s.T, s.Kazahanad(append([]string{"leases", "--config", "none", "--json"}, args...)...).OK(s.T), &r)
	return r
}

func TestLeasesOfADaemon(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Kazahanad("leases", "--config", "none").Fails(t, exitFailure, s.State+"/leases.db", "no such file", "--provider")
	d := s.Start()
	held := s.Dial().Lease()
	r := s.leasesJSON()
	if len(r.Leases) != 1 || r.UsingIDs != 1 || *r.UnusingIDs != 8191 || *r.ClientGetIDSuccess != 1 || *r.ClientIDCount != 1 || r.UsingTTLMax < 1 {
		t.Fatalf("leases --json says %+v", r)
	}
	l := r.Leases[0]
	if l.MachineID != held.MachineID || l.PID != fmt.Sprint(d.PID()) || l.Service != "default" || l.State != stateHeld || l.CreatedMS != held.CreatedMS {
		t.Errorf("leases --json says %+v of %+v", l, held)
	}
	table := s.Kazahanad("leases", "--config", "none").OK(t)
	for _, want := range []string{"MACHINE ID", fmt.Sprintf("\n%d ", held.MachineID), "41/14/8", fmt.Sprint(d.PID()), "default", "held", "1 machine IDs in use"} {
		if !strings.Contains(table, want) {
			t.Errorf("leases does not say %q:\n%s", want, table)
		}
	}
	if r := s.leasesJSON("--service", "other"); len(r.Leases) != 0 || r.UsingIDs != 1 {
		t.Errorf("leases --service other says %+v", r)
	}
	d.Terminate()
	if r := s.leasesJSON(); len(r.Leases) != 0 || r.UsingIDs != 0 {
		t.Errorf("after the daemon has stopped: %+v", r)
	}
	if r := s.leasesJSON("--all"); len(r.Leases) != 1 || r.Leases[0].State != stateReleased {
		t.Errorf("with --all: %+v", r)
	}
	// The provider is found as the daemon finds it; what else it reads does not matter.
	testkit.WriteFile(t, s.Path("k.yaml"), fmt.Sprintf("provider: \"sqlite:%s/leases.db\"\n", s.State))
	cmd := s.Command("leases", "--all")
	cmd.Env = s.Environment("KAZAHANA_CONFIG="+s.Path("k.yaml"), "KAZAHANA_MAX_BACKWARD=rubbish", "KAZAHANA_NONSENSE=1", "KAZAHANA_MACHINE_ID=7")
	if got := testkit.RunCommand(t, cmd).OK(t); !strings.Contains(got, stateReleased) {
		t.Errorf("with KAZAHANA_CONFIG: %s", got)
	}
}

func TestLeasesErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start().Terminate()
	s.Kazahanad("leases", "--config", "none", "--provider", "static:17").Fails(t, exitFailure, "static", "keeps no records")
	s.Kazahanad("leases", "--config", "none", "--provider", "frob:x").Fails(t, exitUsage, "frob", "sqlite:")
	s.Kazahanad("leases", "--config", "none", "--provider", "sqlite:x.db").Fails(t, exitUsage, "relative")
	if said := s.Kazahanad("leases", "init", "--config", "none").OK(t); !strings.Contains(said, "nothing is held back") {
		t.Errorf("init says %q", said)
	}
	s.Kazahanad("leases", "init", "--config", "none", "--provider", "static:17").Fails(t, exitFailure, "static", "needs no declaration")
}

// A pool gets another layout once all of its leases have ended.
func TestLeasesInitBeginsALayout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start()
	s.Dial().ID()
	other := fmt.Sprintf("sqlite:%s/leases.db?bit_seq=2", s.State)
	begin := func() testkit.Outcome { return s.Kazahanad("leases", "init", "--config", "none", "--provider", other) }
	begin().Fails(t, exitFailure, "bit_seq 8", "once all leases have ended")
	d.Terminate() // releases the lease
	await.Eventually(t, "the lease has ended", func() bool { return begin().Code == 0 })
	if said := begin().OK(t); !strings.Contains(said, "granted on these terms") {
		t.Errorf("init says %q", said)
	}
}

func TestInspectNamesTheHolder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start()
	id := s.Dial().ID()
	held := s.Dial().Lease()
	url := "sqlite:" + s.State + "/leases.db"
	inspect := func(id int64, more ...string) (in inspectedJSON) {
		t.Helper()
		testkit.DecodeJSON(t, s.Kazahanad(append([]string{"inspect", "--json", "--provider", url, fmt.Sprint(id)}, more...)...).OK(t), &in)
		return in
	}
	in := inspect(int64(id))
	if len(in.Holders) != 1 || in.Holders[0].PID != fmt.Sprint(d.PID()) || in.Holders[0].CreatedMS != held.CreatedMS || in.Note != "" || in.Kind != "regular" {
		t.Fatalf("inspect says %+v", in)
	}
	said := s.Kazahanad("inspect", "--provider", url, fmt.Sprint(int64(id))).OK(t)
	for _, want := range []string{fmt.Sprintf("pid %d, service default", d.PID()), fmt.Sprintf("machine ID %d (14/8 bits), %s to ", held.MachineID, snowflake.FormatMS(held.CreatedMS)), "not handed back"} {
		if !strings.Contains(said, want) {
			t.Errorf("inspect does not say %q:\n%s", want, said)
		}
	}
	tl := snowflake.DefaultTimeline()
	idAt := func(ms, low int64) int64 { return (ms-tl.EpochMS)<<(snowflake.ValueBits-tl.BitTS) | low }
	slot := held.MachineID << 8
	if in := inspect(idAt(held.CreatedMS-1, slot)); len(in.Holders) != 0 || !strings.Contains(in.Note, "nobody known") || !strings.Contains(in.Note, "the last 8 grants") {
		t.Errorf("before the lease: %+v", in)
	}
	d.Terminate()
	if in := inspect(int64(id)); len(in.Holders) != 1 || !in.Holders[0].Released {
		t.Errorf("after the lease was handed back: %+v", in)
	}
	s.Kazahanad("inspect", "--provider", url, "--epoch", "2025-01-01T00:00:00Z", "1").Fails(t, exitUsage, "--epoch 2026-01-01")
	s.Kazahanad("inspect", "--provider", "static:17", "1").Fails(t, exitFailure, "static", "no history")
	s.Kazahanad("inspect", "--provider", "sqlite:"+s.Path("no.db"), "1").Fails(t, exitFailure, "no.db")
	if offline := s.Kazahanad("inspect", fmt.Sprint(int64(id))).OK(t); strings.Contains(offline, "holder") {
		t.Errorf("inspect without --provider says\n%s", offline)
	}
}

// inspectedJSON is what inspect --json prints.
type inspectedJSON struct {
	ID      string      `json:"id"`
	Kind    string      `json:"kind"`
	Holders []leaseLine `json:"holders"`
	Note    string      `json:"holder_note"`
}

// init declares a store that holds records new only with --yes.
func TestLeasesInitNeedsYes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.StartRedis("--appendonly", "yes", "--appendfsync", "always")
	url := s.Initialised(server.URL() + "ids=7-8")
	run := []string{"run", "--config", "none", "-q", "--wait", "0s", "--provider", url, "--", "true"}
	s.Kazahanad(run...).OK(t)
	server.Kill()
	server.Start()
	if s.Kazahanad(run...).Code == 0 {
		t.Fatal("the store was restarted, and grants before it was declared new")
	}
	s.Kazahanad("leases", "init", "--config", "none", "--provider", url).Fails(t, exitUsage, "--yes", "holds 1 records, ")
	if said := s.Kazahanad("leases", "init", "--config", "none", "--provider", url, "--yes").OK(t); !strings.Contains(said, "is declared new") {
		t.Errorf("init says %q", said)
	}
	s.Kazahanad(run...).OK(t)
}
