package prometheus

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	alertsPage = "../../docs/alerts.md"
	// fleetHosts is the fleet of the table in alertsPage.
	fleetHosts   = 4000
	fleetServers = 3
	// fleetMinutes is how long each history is. Rules are evaluated at even minutes.
	fleetMinutes = 90
	// fleetAlerts is how many alerts may fire at a time, whatever happens.
	fleetAlerts = 3
	// testedHosts is the fleet that promtool is given, every tenth host: it refuses queries
	// that hold more than 10,000 samples at a time, which more hosts would need.
	testedHosts = fleetHosts / 10
	// trouble is the minute in which each history begins to go wrong.
	trouble = 20
)

// history is one of the table: what the hosts and the lease servers show. Each function
// returns the value of a series in a minute.
type history struct {
	host   func(i int) map[string]func(minute int) float64
	server map[string]func(minute int) float64
}

const idsPerMinute = 600

// steadily is a counter that rises by perMinute while is holds.
func steadily(perMinute float64, is func(minute int) bool) func(int) float64 {
	return func(minute int) float64 {
		sum := 0.0
		for m := range minute {
			if is(m) {
				sum += perMinute
			}
		}
		return sum
	}
}

func always(int) bool { return true }
func never(int) bool  { return false }

// between holds in the minutes from (inclusive) to to (exclusive).
func between(from, to int) func(int) bool { return func(m int) bool { return from <= m && m < to } }

func oneWhile(is func(int) bool) func(int) float64 {
	return func(m int) float64 {
		if is(m) {
			return 1
		}
		return 0
	}
}

// life is what a host shows that has no lease in the minutes without, and whose
// reservation is over in the minutes uncertain. Its acquires fail with result in the
// minutes trying.
func life(without, uncertain, trying func(int) bool, result string) map[string]func(int) float64 {
	failed := func(is string) func(int) float64 {
		if is == result {
			return steadily(1, trying)
		}
		return steadily(0, never)
	}
	shown := map[string]func(int) float64{
		"up":                         oneWhile(always),
		"process_start_time_seconds": steadily(0, never),
		"kazahana_fallback_active":   oneWhile(without),
		`kazahana_ids_issued_total{kind="regular"}`: steadily(idsPerMinute, func(m int) bool { return !without(m) }),
		`kazahana_ids_issued_total{kind="fallback_cached"}`: steadily(idsPerMinute, func(m int) bool {
			return without(m) && !uncertain(m)
		}),
		`kazahana_ids_issued_total{kind="fallback_cached_uncertain"}`: steadily(idsPerMinute, uncertain),
		`kazahana_rpc_requests_total{method="NextID",code="ok"}`:      steadily(idsPerMinute, always),
		`kazahana_lease_acquires_total{result="ok"}`:                  oneWhile(always),
	}
	for _, is := range []string{"unavailable", "refused"} {
		shown[fmt.Sprintf("kazahana_lease_acquires_total{result=%q}", is)] = failed(is)
	}
	return shown
}

// The terms of the histories, in minutes, as shipped: leases end up to ten minutes after
// the trouble begins, a last minute before which they are asked for; the reservation
// ends ten minutes later.
func leaseEnd(i int) int { return trouble + 1 + i%10 }

const quarantine = 10

func orderly(int) map[string]func(int) float64 { return life(never, never, never, "") }

func servers(free func(int) float64, failing func(int) bool, result string) map[string]func(int) float64 {
	return map[string]func(int) float64{
		"up":                                    oneWhile(always),
		`kazahana_server_slots{pool="default"}`: func(int) float64 { return 8192 },
		`kazahana_server_slots_free{pool="default"}`:                                       free,
		`kazahana_server_acquires_total{service="default",result="ok"}`:                    steadily(100, func(m int) bool { return !failing(m) }),
		fmt.Sprintf(`kazahana_server_acquires_total{service="default",result=%q}`, result): steadily(1000, failing),
	}
}

func half(int) float64 { return 4000 }

var histories = map[string]history{
	// The store behind the lease servers is away for half an hour.
	"a provider is away for half an hour": {
		host: func(i int) map[string]func(int) float64 {
			end, back := leaseEnd(i), trouble+30+i%3
			return life(between(end, back), between(end+quarantine, back), between(end-1, back), "unavailable")
		},
		server: servers(half, between(trouble, trouble+30), "unavailable"),
	},
	// 20 hosts a minute reboot for four minutes each; one does not come back.
	"a rolling reboot": {
		host: func(i int) map[string]func(int) float64 {
			down, back := trouble+i/20, trouble+i/20+4
			if i == 100 {
				back = fleetMinutes
			}
			shown := orderly(i)
			shown["up"] = oneWhile(func(m int) bool { return !between(down, back)(m) })
			shown["process_start_time_seconds"] = func(m int) float64 { return 60 * float64(down) * oneWhile(between(back, 2*fleetMinutes))(m) }
			return shown
		},
		server: servers(half, never, "full"),
	},
	// The pool loses 40 machine IDs a minute; from the 40th minute on none is free.
	"a full pool": {
		host: func(i int) map[string]func(int) float64 {
			end := leaseEnd(i) + 20
			return life(between(end, fleetMinutes), between(end+quarantine, fleetMinutes), between(end-1, fleetMinutes), "refused")
		},
		server: servers(func(m int) float64 { return max(0, 1600-40*float64(m)) }, between(trouble+20, fleetMinutes), "full"),
	},
	// 40 hosts a minute get a configuration with which the daemon does not start, until
	// somebody stops the roll-out after ten minutes.
	"a roll-out that does not start": {
		host: func(i int) map[string]func(int) float64 {
			shown := orderly(i)
			if i < 400 {
				shown["up"] = oneWhile(func(m int) bool { return m < trouble+i/40 })
			}
			return shown
		},
		server: servers(half, never, "full"),
	},
	// 40 hosts a minute get the URL of another provider, whose leases have another epoch,
	// until a quarter of them has it.
	"a roll-out of the wrong provider": {
		host: func(i int) map[string]func(int) float64 {
			if i >= fleetHosts/4 {
				return orderly(i)
			}
			end := leaseEnd(i) + i/40
			shown := life(between(end, fleetMinutes), between(end+quarantine, fleetMinutes), never, "")
			shown["kazahana_epoch_mismatches_total"] = steadily(1, between(end-1, fleetMinutes))
			return shown
		},
		server: servers(half, never, "full"),
	},
}

// firing is a row of the table: at the minute exactly these alerts fire, as
// "Name severity".
type firing struct {
	history string
	minute  int
	alerts  []string
}

var fleetRow = regexp.MustCompile(`^\| ([^|]+) \| (\d+) \| ([^|]*) \|$`)

// fleetTable reads the table of the page.
func fleetTable(t *testing.T) (rows []firing) {
	t.Helper()
	text, err := os.ReadFile(alertsPage)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		m := fleetRow.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		minute, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		row := firing{history: m[1], minute: minute}
		for _, a := range regexp.MustCompile(`\[(Kazahana\w+)\]\([^)]*\) (page|ticket|info)`).FindAllStringSubmatch(m[3], -1) {
			row.alerts = append(row.alerts, a[1]+" "+a[2])
		}
		if len(row.alerts) == 0 && m[3] != "none" {
			t.Fatalf("%s, minute %d: %q", row.history, minute, m[3])
		}
		rows = append(rows, row)
	}
	return rows
}

// values writes a series in promtool's notation, runs of one step as one word.
func values(of func(int) float64) string {
	var all [fleetMinutes + 2]float64
	for m := range all {
		all[m] = of(m)
	}
	var b strings.Builder
	for m := 0; m <= fleetMinutes; {
		step, n := all[m+1]-all[m], 0
		for m+n < fleetMinutes && all[m+n+1] == all[m]+float64(n+1)*step {
			n++
		}
		fmt.Fprintf(&b, "%g%+gx%d ", all[m], step, n)
		m += n + 1
	}
	return strings.TrimSpace(b.String())
}

func writeSeries(w *bufio.Writer, labels, name string, of string) {
	metric, more, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	if more != "" {
		labels += "," + more
	}
	if strings.HasPrefix(metric, "kazahana_") && !strings.HasPrefix(metric, "kazahana_server_") && !strings.HasPrefix(metric, "kazahana_rpc_") {
		labels += `,service="default"`
	}
	fmt.Fprintf(w, "      - {series: '%s{%s}', values: '%s'}\n", metric, labels, of)
}

// writeHistory writes a test of promtool in which the rows are what is expected.
func writeHistory(t *testing.T, path, rules string, h history, rows []firing) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	// Without an order promtool takes the groups as they come, each time differently.
	fmt.Fprintf(w, "rule_files: [%s]\nevaluation_interval: 2m\ngroup_eval_order: [%s]\ntests:\n  - interval: 1m\n    input_series:\n", rules, strings.Join(groupNames(t), ", "))
	for i := range testedHosts {
		for name, of := range h.host(i * (fleetHosts / testedHosts)) {
			writeSeries(w, fmt.Sprintf(`job="kazahana",instance="h%d"`, i), name, values(of))
		}
	}
	for i := range fleetServers {
		for name, of := range h.server {
			writeSeries(w, fmt.Sprintf(`job="kazahana-lease-server",instance="s%d"`, i), name, values(of))
		}
	}
	fmt.Fprintln(w, "    promql_expr_test:")
	for _, row := range rows {
		fmt.Fprintf(w, "      - expr: count by (alertname, severity) (ALERTS{alertstate=\"firing\"})\n        eval_time: %dm\n        exp_samples:\n", row.minute)
		for _, a := range row.alerts {
			name, severity, _ := strings.Cut(a, " ")
			fmt.Fprintf(w, "          - {labels: '{alertname=\"%s\",severity=\"%s\"}', value: 1}\n", name, severity)
		}
	}
	fmt.Fprintf(w, "      - {expr: 'max_over_time(count(ALERTS{alertstate=\"firing\"})[%dm:2m]) > %d', eval_time: %dm}\n", fleetMinutes, fleetAlerts, fleetMinutes)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFleet lets Prometheus' own tool evaluate the rules over a fleet, and holds what
// fires to the table of docs/alerts.md.
func TestFleet(t *testing.T) {
	ring.All(t)
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]firing{}
	for _, row := range fleetTable(t) {
		if histories[row.history].host == nil {
			t.Errorf("no history %q", row.history)
		}
		if len(row.alerts) > fleetAlerts {
			t.Errorf("%s, minute %d: %d alerts fire, more than %d", row.history, row.minute, len(row.alerts), fleetAlerts)
		}
		rows[row.history] = append(rows[row.history], row)
	}
	for name, h := range histories {
		t.Run(name, func(t *testing.T) {
			if len(rows[name]) < 3 {
				t.Errorf("%d rows of the table are about it", len(rows[name]))
			}
			t.Parallel()
			path := filepath.Join(t.TempDir(), "fleet_test.yaml")
			writeHistory(t, path, rules, h, rows[name])
			promtool(t, "test", "rules", path)
		})
	}
}
