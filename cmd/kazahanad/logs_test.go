package main

import (
	"encoding/json"
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

	"github.com/kazahana/kazahana/internal/testkit"
)

// event is one that docs/logs.md lists. Text that ends with "..." begins the message.
type event struct{ level, component, text string }

func (e event) is(message string) bool {
	if head, ok := strings.CutSuffix(e.text, " ..."); ok {
		return strings.HasPrefix(message, head)
	}
	return message == e.text
}

// documentedEvents are those of the table, one for each level.
func documentedEvents(t *testing.T) (all []event) {
	t.Helper()
	page, err := os.ReadFile("../../docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| ((?:debug|info|warn|error)(?:, (?:warn|error))?) \\| ([a-z]+) \\| `([^`]+)` \\|")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		for level := range strings.SplitSeq(m[1], ", ") {
			all = append(all, event{level, m[2], m[3]})
		}
	}
	if len(all) < 60 {
		t.Fatalf("%d events: the table is not read right", len(all))
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
		if err != nil {
			t.Fatal(err)
		}
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

// literal is the text of an expression, or what it begins with.
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
		"provider": "internal/provider/httplease", "quota": "internal/operator/quota",
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
	for _, dir := range []string{"internal/operator/events", "internal/leaseserver", "internal/operator/guard", "internal/state"} {
		source = append(source, loggedIn(t, dir)...)
	}
	verbs := sourceOf(t, "internal/operator/events/events.go")
	for _, e := range documented {
		if e.text == "OTEL_... is ignored ..." { // made of the variable's name
			continue
		}
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
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// logsOf is what a process has logged, each line checked: one of everything that
// every line has, and only what is listed, at its level and by its component.
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

// uniqueFields reads a JSON object, none of whose names may come twice.
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
