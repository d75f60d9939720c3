package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

const (
	specifications = "../../docs/model"
	// scripts/setup puts TLC there.
	jar = "../../.tools/tla2tools.jar"
	// patience is how long TLC may take for one world, on a busy machine too.
	patience = 25 * time.Minute
	heap     = "-Xmx2g"
)

// world is a specification with bounds.
type world struct {
	module   string
	bounds   map[string]int
	faults   []string
	off      string // the rule that is switched off, or ""
	promises []string
}

// outcome is what TLC found.
type outcome struct {
	states int // distinct ones
	depth  int
	broken string     // the promise that does not hold, or ""
	steps  [][]string // the shortest way there
}

// config is TLC's configuration file of the world.
func (w world) config() string {
	var b strings.Builder
	b.WriteString("SPECIFICATION Spec\nVIEW view\n")
	for _, promise := range w.promises {
		fmt.Fprintf(&b, "INVARIANT %s\n", promise)
	}
	b.WriteString("CONSTANTS\n")
	for _, name := range slices.Sorted(maps.Keys(w.bounds)) {
		fmt.Fprintf(&b, "    %s = %d\n", name, w.bounds[name])
	}
	fmt.Fprintf(&b, "    Faults = {%s}\n", quoted(w.faults...))
	if w.off == "" {
		b.WriteString("    Off = {}\n")
	} else {
		fmt.Fprintf(&b, "    Off = {%s}\n", quoted(w.off))
	}
	return b.String()
}

func quoted(words ...string) string {
	list := make([]string, len(words))
	for i, word := range words {
		list[i] = strconv.Quote(word)
	}
	return strings.Join(list, ", ")
}

var (
	countLine   = regexp.MustCompile(`(?m)^(\d+) states generated, (\d+) distinct states found, (\d+) states left on queue\.`)
	depthLine   = regexp.MustCompile(`(?m)^The depth of the complete state graph search is (\d+)\.`)
	brokenLine  = regexp.MustCompile(`(?m)^Error: Invariant (\w+) is violated`)
	stepLine    = regexp.MustCompile(`(?m)^/\\ did = <<(.*)>>$`)
	otherErrors = regexp.MustCompile(`(?m)^Error: (.*)$`)
)

// check runs TLC on the world.
func check(t *testing.T, w world) outcome {
	t.Helper()
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, w.module+".tla"), []byte(read(t, w.module+".tla")), 0o600))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, w.module+".cfg"), []byte(w.config()), 0o600))
	tools, err := filepath.Abs(jar)
	must.Succeed(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// One worker finds the shortest way to a broken promise; where none is expected, all
	// may search. Deadlocks are no fault: a world of few grants comes to an end.
	workers := 1
	if w.off == "" {
		workers = runtime.NumCPU()
	}
	tlc := exec.CommandContext(ctx, "java", "-XX:+UseParallelGC", heap, "-cp", tools, "tlc2.TLC",
		"-workers", strconv.Itoa(workers), "-deadlock", "-metadir", filepath.Join(dir, "states"), w.module+".tla")
	tlc.Dir = dir
	said, err := tlc.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("TLC did not end within %v; it said last:\n%s", patience, lastLines(said))
	}
	o, readable := parse(string(said))
	var exit *exec.ExitError
	if !readable || err != nil && !errors.As(err, &exit) {
		t.Fatalf("TLC cannot check %s (%v):\n%s\nwith the configuration\n%s", w.module, err, lastLines(said), w.config())
	}
	return o
}

func lastLines(said []byte) string {
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// parse reads what TLC says. It is not readable unless TLC either searched
// everything or found a broken promise.
func parse(said string) (o outcome, readable bool) {
	count, depth := countLine.FindStringSubmatch(said), depthLine.FindStringSubmatch(said)
	if count == nil || depth == nil {
		return o, false
	}
	o.states, _ = strconv.Atoi(count[2])
	o.depth, _ = strconv.Atoi(depth[1])
	if broken := brokenLine.FindStringSubmatch(said); broken != nil {
		o.broken = broken[1]
		for _, step := range stepLine.FindAllStringSubmatch(said, -1) {
			o.steps = append(o.steps, fields(step[1]))
		}
		return o, len(o.steps) > 1
	}
	return o, count[3] == "0" && !otherErrors.MatchString(said)
}

// fields splits the members of a TLA+ tuple: strings, numbers, truth values and sets
// of numbers.
func fields(tuple string) []string {
	var list []string
	depth, from := 0, 0
	for i, c := range tuple {
		switch {
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth == 0:
			list = append(list, strings.Trim(strings.TrimSpace(tuple[from:i]), `"`))
			from = i + 1
		}
	}
	return append(list, strings.Trim(strings.TrimSpace(tuple[from:]), `"`))
}
