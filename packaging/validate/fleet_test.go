package validate

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

const (
	fleetPage = "fleet.txt"
	rulesFile = "../prometheus/kazahana-alerts.yaml"
	// fleetHosts is the fleet of the table in fleetPage.
	fleetHosts   = 4000
	fleetServers = 3
	// fleetMinutes is how long each history is.
	fleetMinutes = 90
	// evaluated is how many minutes apart the rules are evaluated.
	evaluated = 2
	// fleetAlerts is how many alerts may fire at a time, under any fault.
	fleetAlerts = 3
	// maxSamples is how many samples a query may load: the default of Prometheus'
	// --query.max-samples.
	maxSamples = 50_000_000
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

// life is the series of a host that has no lease in the minutes without, and no
// reservation in the minutes uncertain. Its acquires fail with result in the minutes
// trying.
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
	// 40 hosts a minute get a configuration with which the daemon does not start, until an
	// operator stops the roll-out after ten minutes.
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
	// 40 hosts a minute get the URL of another provider, which has leases of another epoch, until
	// a quarter of them has it.
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
	text := readText(t, fleetPage)
	for line := range strings.Lines(text) {
		m := fleetRow.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		minute, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		row := firing{history: m[1], minute: minute}
		for _, a := range regexp.MustCompile(`(Kazahana\w+) (page|ticket|info)`).FindAllStringSubmatch(m[3], -1) {
			row.alerts = append(row.alerts, a[1]+" "+a[2])
		}
		if len(row.alerts) == 0 && m[3] != "none" {
			t.Fatalf("%s, minute %d: %q", row.history, minute, m[3])
		}
		rows = append(rows, row)
	}
	return rows
}

// fleet is a Prometheus with the samples of a history.
type fleet struct {
	*tsdb.DB
	groups []*rules.Group // in the order of the file
}

// newFleet takes the samples of one host in every, and of the lease servers, one a
// minute.
func newFleet(t *testing.T, h history, every int) *fleet {
	t.Helper()
	const whole = int64(24 * time.Hour / time.Millisecond) // nothing is compacted
	db, err := tsdb.Open(t.TempDir(), slog.New(slog.DiscardHandler), nil, &tsdb.Options{
		WALSegmentSize: -1, MinBlockDuration: whole, MaxBlockDuration: whole, RetentionDuration: whole,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	f := &fleet{DB: db}
	for n := range fleetHosts / every {
		i := n*every + n%every // so that the ends of leases are as in the whole fleet
		f.add(t, "kazahana", fmt.Sprintf("h%d", i), h.host(i))
	}
	for i := range fleetServers {
		f.add(t, "kazahana-lease-server", fmt.Sprintf("s%d", i), h.server)
	}
	f.load(t)
	return f
}

// add appends the samples of a target.
func (f *fleet) add(t *testing.T, job, instance string, shown map[string]func(int) float64) {
	t.Helper()
	app := f.Appender(t.Context())
	for series, of := range shown {
		metric, err := parser.ParseMetric(series)
		if err != nil {
			t.Fatal(err)
		}
		b := labels.NewBuilder(metric).Set("job", job).Set("instance", instance)
		if name := metric.Get(labels.MetricName); strings.HasPrefix(name, "kazahana_") && !strings.HasPrefix(name, "kazahana_server_") && !strings.HasPrefix(name, "kazahana_rpc_") {
			b.Set("service", "default")
		}
		ref, all := storage.SeriesRef(0), b.Labels()
		for m := range fleetMinutes + 1 {
			if ref, err = app.Append(ref, all, at(m).UnixMilli(), of(m)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// at is the time of a minute of a history.
func at(minute int) time.Time { return time.Unix(int64(minute)*60, 0) }

// load makes the groups of the rules.
func (f *fleet) load(t *testing.T) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	engine := promql.NewEngine(promql.EngineOpts{
		Logger: log, MaxSamples: maxSamples, Timeout: math.MaxInt64,
		NoStepSubqueryIntervalFn: func(int64) int64 { return evaluated * time.Minute.Milliseconds() },
	})
	t.Cleanup(func() { _ = engine.Close() })
	loaded, errs := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(engine, f), Appendable: f, Queryable: f, Context: t.Context(), Logger: log,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
	}).LoadGroups(evaluated*time.Minute, labels.EmptyLabels(), "", nil, false, rulesFile)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	file, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range file.Groups {
		group := loaded[rules.GroupKey(rulesFile, g.Name)]
		for _, r := range group.AlertingRules() {
			r.SetRestored(true) // without alerts from an earlier life: ALERTS is written from now on
		}
		f.groups = append(f.groups, group)
	}
}

// firing evaluates all rules, and returns what fires then.
func (f *fleet) firing(t *testing.T, minute int) (all []string) {
	t.Helper()
	for _, g := range f.groups {
		g.Eval(t.Context(), at(minute))
		for _, r := range g.Rules() {
			if err := r.LastError(); err != nil {
				t.Fatalf("minute %d: %s: %v", minute, r.Name(), err)
			}
		}
		for _, r := range g.AlertingRules() {
			for _, a := range r.ActiveAlerts() {
				if a.State == rules.StateFiring {
					all = append(all, r.Name()+" "+a.Labels.Get("severity"))
				}
			}
		}
	}
	return all
}

// TestFleet has Prometheus evaluate the rules over a fleet, and holds what fires to the
// table of fleet.txt. In the ring "deep" the fleet is whole; below it is a tenth
// that does one history.
func TestFleet(t *testing.T) {
	const short = "a full pool"
	every, deep := 10, os.Getenv("KZTEST_RING") == "deep"
	if deep {
		every = 1
	}
	rows := map[string][]firing{}
	for _, row := range fleetTable(t) {
		if histories[row.history].host == nil {
			t.Errorf("no history %q", row.history)
		}
		if row.minute%evaluated != 0 || row.minute > fleetMinutes {
			t.Errorf("%s: nothing is evaluated in minute %d", row.history, row.minute)
		}
		rows[row.history] = append(rows[row.history], row)
	}
	for name, h := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(rows[name]) < 3 {
				t.Errorf("%d rows of the table are about it", len(rows[name]))
			}
			if !deep && name != short {
				return
			}
			f := newFleet(t, h, every)
			for minute := 0; minute <= fleetMinutes; minute += evaluated {
				got := f.firing(t, minute)
				if len(got) > fleetAlerts {
					t.Errorf("minute %d: more than %d alerts fire: %q", minute, fleetAlerts, got)
				}
				slices.Sort(got)
				for _, row := range rows[name] {
					if want := slices.Sorted(slices.Values(row.alerts)); row.minute == minute && !slices.Equal(got, want) {
						t.Errorf("minute %d: %q fire, and the table has %q", minute, got, want)
					}
				}
			}
		})
	}
}
