package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// oldSystems make an ID of each system on docs/coming-from, by its published
// epoch and widths.
var oldSystems = map[string]func(ms, low int64) int64{
	"katsubushi":           snowflakeSince(1420070400000, 22),
	"Twitter, bwmarrin":    snowflakeSince(1288834974657, 22),
	"Leaf":                 snowflakeSince(1288834974657, 22),
	"hutool, MyBatis-Plus": snowflakeSince(1288834974657, 22),
	"CosId":                snowflakeSince(1577203200000, 22),
	"hypersistence TSID":   snowflakeSince(1577836800000, 22),
	"sonyflake":            func(ms, low int64) int64 { return (ms-1409529600000)/10<<24 | low&(1<<24-1) },
	"yitter":               snowflakeSince(1582136402000, 12),
	"uid-generator":        func(ms, low int64) int64 { return (ms-1474329600000)/1000<<34 | low&(1<<34-1) },
	"Instagram":            snowflakeSince(1314220021721, 23),
	"Mastodon":             snowflakeSince(0, 16),
	"Leaf segments":        func(ms, low int64) int64 { return low & (1<<40 - 1) },
}

func snowflakeSince(epochMS int64, lowBits int) func(ms, low int64) int64 {
	return func(ms, low int64) int64 { return (ms-epochMS)<<lowBits | low&(1<<lowBits-1) }
}

var comingFromRow = regexp.MustCompile("(?m)^\\| \\[?([^|\\]]+?)(?:\\](?:\\([^)]*\\))?[^|]*)? \\| [^|]* \\| `([^`]+)` \\| ([0-9-]+) \\|$")

// Every row of the table is right: new IDs sort above the old system's, now and at
// a switch in two years, and the layout lasts until the day that the row names.
func TestComingFrom(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/coming-from/README.md")
	must.Succeed(t, err)
	s, met := testkit.NewSite(t), map[string]bool{}
	for _, row := range comingFromRow.FindAllStringSubmatch(string(page), -1) {
		name, params, lasts := row[1], row[2], row[3]
		for system, make := range oldSystems {
			if name != system {
				continue
			}
			met[system] = true
			for _, day := range []string{"2026-11-22", "2027-12-31"} {
				said := s.Kazahanad("layout", "--provider", "redis://h/0?"+params, "--at", day, "--check", oldSample(t, s, make, day)).OK(t)
				until := regexp.MustCompile(`time +from \S+ to (\S+)`)
				if strings.Contains(params, "layout=js") {
					until = regexp.MustCompile(`below 2\^53 +until (\S+)`)
				}
				if m := until.FindStringSubmatch(said); m == nil || !strings.HasPrefix(m[1], lasts+"T") || !strings.Contains(said, "ok: new IDs sort above all old ones") {
					t.Errorf("%s with %s: the page says until %s:\n%s", name, params, lasts, said)
				}
			}
		}
	}
	if len(met) != len(oldSystems) {
		t.Errorf("the page has %v, and the systems are %d", met, len(oldSystems))
	}
}

// comingFromPages are the pages of docs/coming-from for one system each, by name.
func comingFromPages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../docs/coming-from/*.md")
	if err != nil || len(files) < 11 {
		t.Fatal(files, err)
	}
	pages := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		must.Succeed(t, err)
		if name := strings.TrimSuffix(filepath.Base(file), ".md"); name != "README" {
			pages[name] = string(content)
		}
	}
	return pages
}

var (
	comingFromServe  = regexp.MustCompile(`(?m)^    kazahanad serve (.*)$`)
	comingFromParams = regexp.MustCompile(`redis://redis:6379/0\?([^']+)`)
	ellipsis         = regexp.MustCompile(`(?m)(^|, )\.\.\.$`)
)

// Each command of a page prints what the page shows, and a daemon that is started with
// the page's flags makes IDs above its samples.
func TestComingFromPages(t *testing.T) {
	t.Parallel()
	for name, page := range comingFromPages(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewSite(t)
			samples := map[string]int64{} // the greatest, by the parameters of the check
			for _, m := range docFence.FindAllStringSubmatch(page, -1) {
				for _, part := range strings.Split("\n"+m[3], "\n$ ")[1:] {
					command, want, _ := strings.Cut(part, "\n")
					comingFromCommand(t, s, command, want, samples)
				}
			}
			served := comingFromServe.FindAllStringSubmatch(page, -1)
			if len(samples) == 0 || len(served) < len(samples) {
				t.Fatalf("%d checks, and %d ways to start", len(samples), len(served))
			}
			for i, m := range served {
				params := comingFromParams.FindStringSubmatch(m[1])
				if params == nil || !strings.Contains(page, "leases init --provider '"+params[0]+"' #") {
					t.Fatal(m[1])
				}
				dir := s.Path(fmt.Sprint("state", i))
				flags := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(m[1], "redis://redis:6379/0", "sqlite:"+dir+"/leases.db"), "'", ""))
				for j, flag := range flags {
					if flag == "--memcached-listen" {
						flags[j+1] = "unix:" + s.Path("memcached.sock")
					}
				}
				instance := s.Start(append(flags, "--state-dir", dir)...)
				said := strings.TrimSpace(s.Kazahanad("id").OK(t))
				if id, err := strconv.ParseInt(said, 10, 64); err != nil || id <= samples[params[1]] {
					t.Errorf("%s: %s is not above %d: %v", m[1], said, samples[params[1]], err)
				}
				delete(samples, params[1])
				instance.Terminate()
			}
			for params := range samples {
				t.Errorf("no daemon is started with %s", params)
			}
		})
	}
}

// comingFromCommand runs a command of a page in the site, and compares what it prints.
func comingFromCommand(t *testing.T, s *testkit.Site, command, want string, samples map[string]int64) {
	t.Helper()
	if sample, ok := strings.CutPrefix(command, `printf '%s\n' `); ok {
		ids, ok := strings.CutSuffix(sample, " > old")
		if !ok {
			t.Fatal(command)
		}
		testkit.WriteFile(t, s.Path("old"), strings.ReplaceAll(ids, " ", "\n")+"\n")
		return
	}
	args := strings.Fields(strings.ReplaceAll(strings.TrimPrefix(command, "kazahanad "), "'", ""))
	for i, arg := range args {
		if arg == "old" {
			args[i] = s.Path("old")
		}
	}
	said := s.Kazahanad(args...).OK(t)
	for _, part := range ellipsis.Split(strings.TrimSpace(want), -1) {
		at := strings.Index(said, strings.Trim(part, "\n"))
		if at < 0 {
			t.Fatalf("%s: the page shows\n%s\nand it says\n%s", command, part, said)
		}
		said = said[at:]
	}
	if params := comingFromParams.FindStringSubmatch(command); params != nil {
		old, err := os.ReadFile(s.Path("old"))
		must.Succeed(t, err)
		for _, line := range strings.Fields(string(old)) {
			id, err := strconv.ParseInt(line, 10, 64)
			must.Succeed(t, err)
			samples[params[1]] = max(samples[params[1]], id)
		}
	}
}

// oldSample is a file with IDs of the day before, and the last one before the day.
func oldSample(t *testing.T, s *testkit.Site, id func(ms, low int64) int64, day string) string {
	t.Helper()
	at, err := time.Parse(time.DateOnly, day)
	must.Succeed(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	lines := []string{fmt.Sprint(id(at.UnixMilli()-1, 1<<62-1))}
	for range 100 {
		lines = append(lines, fmt.Sprint(id(at.UnixMilli()-1-r.Int64N(86_400_000), r.Int64())))
	}
	file := s.Path("old")
	testkit.WriteFile(t, file, strings.Join(lines, "\n")+"\n")
	return file
}

// Worker W of a system with the same epoch and 12 bits of sequence has the low bits
// of machine IDs 16 W to 16 W + 15, and the check says which are free.
func TestComingFromWhileBothRun(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	var lines []string
	for w := range int64(21) {
		for _, sequence := range []int64{0, 300, 4095} {
			lines = append(lines, fmt.Sprint(oldSystems["katsubushi"](snowflake.DefaultEpochMS, w<<12|sequence)))
		}
	}
	file := s.Path("both")
	testkit.WriteFile(t, file, strings.Join(lines, "\n")+"\n")
	for ids, want := range map[string]string{"": "machine IDs 336-8191", "&ids=336-8191": "machine IDs 336-8191", "&ids=0-15": "machine IDs 2-14"} {
		said := s.Kazahanad("layout", "--provider", "redis://h/0?epoch=2015-01-01T00:00:00Z"+ids, "--check", file).OK(t)
		if !strings.Contains(said, want) {
			t.Errorf("%q: %s is not in\n%s", ids, want, said)
		}
	}
}

func TestLayoutCheckRefuses(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	check := func(text string) testkit.Outcome {
		file := s.Path("ids")
		testkit.WriteFile(t, file, text)
		return s.Kazahanad("layout", "--at", "2026-11-22", "--check", file)
	}
	check("650000000000000000\n").Fails(t, exitFailure, "before 2030-11-29T15:47:56.417Z", "an epoch of 2021-12-24T00:00:00Z or earlier", "2091-08-30")
	check("1\nx\n").Fails(t, exitFailure, "line 2")
	check("1\n-5\n").Fails(t, exitFailure, "line 2")
	check("SoAkz6KzylI\n").Fails(t, exitFailure, "line 1")
	check("\n \n").Fails(t, exitFailure, "no IDs")
	check("9223372036854775807\n").Fails(t, exitFailure, "no epoch")
	if said := check("\"0x5\",\n12345678901\n").OK(t); !strings.Contains(said, "2, from 5 to 12345678901") {
		t.Error(said)
	}
	s.Kazahanad("layout", "--check", s.Path("nothing")).Fails(t, exitFailure, s.Path("nothing"))
	s.Kazahanad("layout", "--provider", "redis://h/0", "--bit-ts", "42").Fails(t, exitUsage, "leave out")
	s.Kazahanad("layout", "--provider", "https://h").Fails(t, exitUsage, "lease server")
	s.Kazahanad("layout", "--provider", "redis://h/0?layout=json").Fails(t, exitUsage, "json")
	s.Kazahanad("layout", "--epoch", "2126-01-01T00:00:00Z").Fails(t, exitUsage, "outside")
}
