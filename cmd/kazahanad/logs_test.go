package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/events"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// event is an event that docs/logs.md lists. Text that ends with "..." begins the message.
type event struct{ level, component, text string }

func (e event) is(message string) bool {
	if head, ok := strings.CutSuffix(e.text, " ..."); ok {
		return strings.HasPrefix(message, head)
	}
	return message == e.text
}

// documentedEvents are those of the lists, one for each level. The heading of a list is the component.
func documentedEvents(t *testing.T) (all []event) {
	t.Helper()
	heading := regexp.MustCompile("^### ([a-z]+)$")
	item := regexp.MustCompile("^- ((?:debug|info|warn|error)(?:, (?:warn|error))?) `([^`]+)`")
	component := ""
	for line := range strings.Lines(sourceOf(t, "docs/logs.md")) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			component = m[1]
		}
		if m := item.FindStringSubmatch(line); m != nil {
			for level := range strings.SplitSeq(m[1], ", ") {
				all = append(all, event{level, component, m[2]})
			}
		}
	}
	if len(all) < 60 {
		t.Fatalf("%d events: the lists are not read right", len(all))
	}
	return all
}

// loggedIn are the level and the beginning of each message that the source of a
// package logs.
func loggedIn(t *testing.T, dir string) (all []event) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}
	levels := map[string]string{"Debug": "debug", "Info": "info", "Warn": "warn", "Error": "error", "logRefusal": "warn", "fail": "error"}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		must.Succeed(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.SelectorExpr:
				name = f.Sel.Name
			case *ast.Ident:
				name = f.Name
			}
			for i, arg := range call.Args {
				level := levels[name]
				if i > 0 { // the argument before it is the level
					if s, ok := call.Args[i-1].(*ast.SelectorExpr); ok && strings.HasSuffix(s.Sel.Name, "Level") {
						level = strings.ToLower(strings.TrimSuffix(s.Sel.Name, "Level"))
					} else {
						level = ""
					}
				}
				if text, ok := literal(arg); ok && level != "" {
					all = append(all, event{level: level, text: text})
				}
			}
			return true
		})
	}
	return all
}

// literal is the text of an expression, or its beginning.
func literal(e ast.Expr) (string, bool) {
	if sum, ok := e.(*ast.BinaryExpr); ok {
		text, ok := literal(sum.X)
		return text + "...", ok
	}
	b, ok := e.(*ast.BasicLit)
	if !ok || b.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(b.Value)
	return text, err == nil
}

// Every event that the page lists is logged by the source, at its level; and what the
// rooms log, the page lists.
func TestDocumentedEventsAreLogged(t *testing.T) {
	rooms := map[string]string{
		"keeper": "internal/keeper", "daemon": "internal/daemon", "leaseserver": "internal/leaseserver", "tracing": "internal/operator/tracing",
		"provider": "internal/provider/httplease", "refusals": "internal/operator/refusals",
	}
	documented := documentedEvents(t)
	source := loggedIn(t, "cmd/kazahanad")
	for component, dir := range rooms {
		logged := loggedIn(t, dir)
		source = append(source, logged...)
		for _, l := range logged {
			if !slices.ContainsFunc(documented, func(e event) bool {
				return e.level == l.level && (e.component == component || e.component == "state") && (e.is(l.text) || strings.HasSuffix(l.text, "..."))
			}) {
				t.Errorf("%s logs %q at %s, and docs/logs.md does not list it", dir, l.text, l.level)
			}
		}
	}
	for _, dir := range []string{"internal/issuer", "internal/operator/events", "internal/leaseserver", "internal/state"} {
		source = append(source, loggedIn(t, dir)...)
	}
	verbs := sourceOf(t, "internal/operator/events/events.go")
	for _, e := range documented {
		head := strings.TrimSuffix(e.text, " ...")
		if !slices.ContainsFunc(source, func(l event) bool {
			return l.level == e.level && strings.HasPrefix(strings.TrimSuffix(l.text, "..."), head)
		}) && !strings.Contains(verbs, strconv.Quote(e.text)) && e.component != "serve" {
			t.Errorf("docs/logs.md lists %q of %s at %s, and nothing logs that", e.text, e.component, e.level)
		}
	}
}

func sourceOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	must.Succeed(t, err)
	return string(text)
}

// logsOf returns the log of a process, each line checked: one of everything that every line has,
// and only listed events, at its level and by its component.
func logsOf(t *testing.T, log *testkit.Log) map[event]bool {
	t.Helper()
	documented := documentedEvents(t)
	seen := map[event]bool{}
	for line := range strings.Lines(log.String()) {
		fields, err := uniqueFields(line)
		if err != nil {
			t.Errorf("%v: %s", err, line)
			continue
		}
		got := event{fields["level"], fields["component"], fields["msg"]}
		i := slices.IndexFunc(documented, func(e event) bool { return e.level == got.level && e.component == got.component && e.is(got.text) })
		switch {
		case i >= 0:
			seen[documented[i]] = true
		case got.level == "" || got.component == "" || got.text == "":
			t.Errorf("a line lacks its level, component or event: %s", line)
		case got.component != "state": // which warns in sentences
			t.Errorf("docs/logs.md does not list %+v: %s", got, line)
		}
	}
	return seen
}

// uniqueFields reads a JSON object; none of the names may come twice.
func uniqueFields(line string) (map[string]string, error) {
	fields := map[string]string{}
	d := json.NewDecoder(strings.NewReader(line))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if _, twice := fields[fmt.Sprint(name)]; twice {
			return nil, fmt.Errorf("%v comes twice", name)
		}
		fields[fmt.Sprint(name)] = fmt.Sprint(value)
	}
	if _, err := d.Token(); err != nil && err != io.EOF {
		return nil, err
	}
	return fields, nil
}

// namedElsewhere are the events that another design names, with the fields that each line
// has. Level and component are those of the lists.
func namedElsewhere(t *testing.T) map[event][]string {
	t.Helper()
	_, list, _ := strings.Cut(sourceOf(t, "docs/logs.md"), "## Events named elsewhere")
	all, documented := map[event][]string{}, documentedEvents(t)
	field := regexp.MustCompile("`([a-z_]+)`")
	for _, m := range regexp.MustCompile("(?m)^- `([^`]+)`: (.+)$").FindAllStringSubmatch(list, -1) {
		var fields []string
		for _, f := range field.FindAllStringSubmatch(m[2], -1) {
			fields = append(fields, f[1])
		}
		i := slices.IndexFunc(documented, func(e event) bool { return e.text == m[1] })
		if i < 0 {
			t.Fatalf("docs/logs.md does not list %q", m[1])
		}
		all[documented[i]] = fields
	}
	if len(all) != 10 {
		t.Fatalf("%d events are named elsewhere: %v", len(all), all)
	}
	return all
}

// failingSequences logs what becomes of sequences without their store.
func failingSequences(log *zap.Logger) {
	away, after := errors.New("the store is away"), events.Sequences(log).After
	after(context.Background(), sequence.Operation{
		Name:    "next",
		Request: sequence.Request{Key: "k", Count: 1, Options: sequence.Options{TTL: time.Hour}},
		Err:     fmt.Errorf("%w: %w", sequence.ErrReset, away),
	})
}

// The events that another design names are logged as the page says: at their level, by
// their component, with their fields.
func TestEventsNamedElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start(s.Brief("--log-level", "debug", "--log-format", "json")...)
	c := s.Dial()
	var value any
	c.Must("Sequence.Next", &value, "k")
	c.Must("Sequence.NextBatch", &value, "k", 3)
	d.AwaitLog("worker id allocated") // before, a file that is moved away would be made anew
	mend := s.moveAway()
	d.AwaitLog("failed to allocate worker id")
	d.AwaitLog("circuit breaking")
	mend()
	d.Terminate()
	var failed bytes.Buffer
	failingSequences(zap.New(zapcore.NewCore(newEncoder(config.LogJSON, &system{}), zapcore.AddSync(&failed), zap.DebugLevel)))
	lines := map[event][]map[string]string{}
	for line := range strings.Lines(d.Log.String() + failed.String()) {
		fields, err := uniqueFields(line)
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		e := event{fields["level"], fields["component"], fields["msg"]}
		lines[e] = append(lines[e], fields)
	}
	for e, fields := range namedElsewhere(t) {
		if len(lines[e]) == 0 {
			t.Errorf("nothing logs %+v", e)
		}
		for _, line := range lines[e] {
			if _, named := line["datacenter_id"]; named { // seed 003-7.1-4
				t.Errorf("%s names a datacenter: %v", e.text, line)
			}
			for _, f := range fields {
				if _, ok := line[f]; !ok { // seed 003-7.1-2
					t.Errorf("%s has no %s: %v", e.text, f, line)
				}
			}
			if id, ok := line["worker_id"]; ok && line["key"] != line["service"]+":"+id {
				t.Errorf("%s has the key %q: %v", e.text, line["key"], line)
			}
		}
	}
}

// A stop while the store is away, with a lock that is held, is no failure of the stop.
func TestStopWithoutStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	redis := s.StartRedis()
	d := s.Start("--provider", "static:7", "--store", s.Initialised(redis.URL()), "--log-format", "json")
	c := s.Dial()
	var answer any
	c.Must("Lock.Acquire", &answer, "held", map[string]any{"ttl_ms": 86_400_000, "hold": "connection"})
	redis.Kill()
	d.Terminate()
	if d.Err != nil {
		t.Errorf("it ended with %v", d.Err)
	}
	if want := (event{"warn", "serve", "locks could not be released in time; they end with their terms"}); !logsOf(t, d.Log)[want] {
		t.Errorf("the log has not %+v:\n%s", want, d.Log)
	}
}
