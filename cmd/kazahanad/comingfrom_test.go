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

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// oldSystems make an ID of each system on docs/coming-from.md, by its published
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
	page, err := os.ReadFile("../../docs/coming-from.md")
	must.Succeed(t, err)
	met := map[string]bool{}
	for _, row := range comingFromRow.FindAllStringSubmatch(string(page), -1) {
		name, params, lasts := row[1], row[2], row[3]
		for system, make := range oldSystems {
			if name != system {
				continue
			}
			met[system] = true
			for _, day := range []string{"2026-11-22", "2027-12-31"} {
				said := typed(t, "layout", "--provider", "redis://h/0?"+params, "--at", day, "--check", oldSample(t, make, day)).OK(t)
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

var (
	comingFromServe = regexp.MustCompile(`(?m)^    kazahanad serve (.*)$`)
	ellipsis        = regexp.MustCompile(`(?m)(^|, )\.\.\.$`)
)

// Each command of the page prints what the page shows, and a daemon that is started with
// the page's flags makes IDs above those of the page's example.
func TestComingFromPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/coming-from.md")
	must.Succeed(t, err)
	s := testkit.NewSite(t)
	greatest := katsubushiSample(t, s.Path("old"), 21)
	commands := 0
	for _, m := range docFence.FindAllStringSubmatch(string(page), -1) {
		for _, part := range strings.Split("\n"+m[3], "\n$ kazahanad ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			args := strings.Fields(strings.ReplaceAll(command, "'", ""))
			for i, arg := range args {
				if arg == "old" {
					args[i] = s.Path("old")
				}
			}
			shows(t, command, s.Kazahanad(args...).OK(t), want)
			commands++
		}
	}
	served := comingFromServe.FindAllStringSubmatch(string(page), -1)
	if commands != 2 || len(served) != 1 {
		t.Fatalf("%d commands, and %d ways to start", commands, len(served))
	}
	store := "sqlite:" + s.Path("leases.db")
	s.Start(strings.Fields(strings.ReplaceAll(strings.ReplaceAll(served[0][1], "redis://redis:6379/0", store), "'", ""))...)
	said := strings.TrimSpace(s.Kazahanad("id").OK(t))
	if id, err := strconv.ParseInt(said, 10, 64); err != nil || id <= greatest {
		t.Errorf("%s is not above %d: %v", said, greatest, err)
	}
}

// shows fails if the text does not have the parts of want in their order; "..." stands for
// any text in between.
func shows(t *testing.T, command, said, want string) {
	t.Helper()
	for _, part := range ellipsis.Split(strings.TrimSpace(want), -1) {
		at := strings.Index(said, strings.Trim(part, "\n"))
		if at < 0 {
			t.Fatalf("%s: the page shows\n%s\nand it says\n%s", command, part, said)
		}
		said = said[at:]
	}
}

// katsubushiSample writes IDs of that many of katsubushi's workers to the file, and
// returns the greatest.
func katsubushiSample(t *testing.T, file string, workers int64) int64 {
	t.Helper()
	now, greatest := time.Now().UnixMilli(), int64(0)
	var lines []string
	for w := range workers {
		for _, sequence := range []int64{0, 300, 4095} {
			id := oldSystems["katsubushi"](now, w<<12|sequence)
			lines, greatest = append(lines, fmt.Sprint(id)), max(greatest, id)
		}
	}
	testkit.WriteFile(t, file, strings.Join(lines, "\n")+"\n")
	return greatest
}

// oldSample is a file with IDs of the day before, and the last one before the day.
func oldSample(t *testing.T, id func(ms, low int64) int64, day string) string {
	t.Helper()
	at, err := time.Parse(time.DateOnly, day)
	must.Succeed(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	lines := []string{fmt.Sprint(id(at.UnixMilli()-1, 1<<62-1))}
	for range 100 {
		lines = append(lines, fmt.Sprint(id(at.UnixMilli()-1-r.Int64N(86_400_000), r.Int64())))
	}
	file := filepath.Join(t.TempDir(), "old")
	testkit.WriteFile(t, file, strings.Join(lines, "\n")+"\n")
	return file
}

// Worker W of a system with the same epoch and 12 bits of sequence has the low bits
// of machine IDs 16 W to 16 W + 15, and the check says which are free.
func TestComingFromWhileBothRun(t *testing.T) {
	t.Parallel()
	old := filepath.Join(t.TempDir(), "old")
	greatest := katsubushiSample(t, old, 21)
	// Both run, and the check comes a millisecond later.
	await.Eventually(t, "the next millisecond", func() bool { return oldSystems["katsubushi"](time.Now().UnixMilli(), 0) > greatest })
	for ids, want := range map[string]string{"": "machine IDs 336-8191", "&ids=336-8191": "machine IDs 336-8191", "&ids=0-15": "machine IDs 2-14"} {
		said := typed(t, "layout", "--provider", "redis://h/0?epoch=2015-01-01T00:00:00Z"+ids, "--check", old).OK(t)
		if !strings.Contains(said, want) {
			t.Errorf("%q: %s is not in\n%s", ids, want, said)
		}
	}
}

func TestLayoutCheckRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ids")
	check := func(text string) testkit.Outcome {
		testkit.WriteFile(t, file, text)
		return typed(t, "layout", "--at", "2026-11-22", "--check", file)
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
	typed(t, "layout", "--check", "/nothing").Fails(t, exitFailure, "/nothing")
	typed(t, "layout", "--provider", "redis://h/0", "--bit-ts", "42").Fails(t, exitUsage, "leave out")
	typed(t, "layout", "--provider", "https://h").Fails(t, exitUsage, "lease server")
	typed(t, "layout", "--provider", "redis://h/0?layout=json").Fails(t, exitUsage, "json")
	typed(t, "layout", "--epoch", "2126-01-01T00:00:00Z").Fails(t, exitUsage, "outside")
}
