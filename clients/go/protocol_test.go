//go:build go1.25

package kazahana

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func protocolPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// The bytes that the page shows are those of the recorded exchanges.
func TestProtocolPageBytes(t *testing.T) {
	recorded := map[string]recordedExchange{}
	for _, e := range exchanges(t) {
		recorded[e.Name] = e
	}
	shown := regexp.MustCompile(`(?s)<!-- (request|response): ([^\n]+) -->\n\x60{3}hex\n(.*?)\x60{3}`).FindAllStringSubmatch(protocolPage(t), -1)
	if len(shown) < 3 {
		t.Errorf("only %d messages found", len(shown))
	}
	for _, m := range shown {
		e, ok := recorded[m[2]]
		want := map[string]string{"request": e.Request, "response": e.Response}[m[1]]
		text := regexp.MustCompile(`#.*|\s`).ReplaceAllString(m[3], "")
		if !ok || text != want {
			t.Errorf("the %s %q is shown as %s, and was recorded as %s", m[1], m[2], text, want)
		}
	}
}

// The page names every method that a daemon has. A test of internal/architecture holds it to
// the codes.
func TestProtocolPageIsComplete(t *testing.T) {
	page := protocolPage(t)
	err := newDaemon(t).client().Call(t.Context(), "NoSuchMethod", nil)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(e.Message, "there are ")
	var names []string
	for _, name := range strings.Split(list, ", ") {
		group, rest, grouped := strings.Cut(name, ".")
		if !grouped {
			names = append(names, name)
			continue
		}
		for _, one := range strings.Split(rest, "/") { // Lock.Acquire/Renew/Release
			names = append(names, group+"."+one)
		}
	}
	if len(names) < 15 {
		t.Errorf("methods: %q", names)
	}
	for _, name := range names {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("the page does not have the method %s", name)
		}
	}
}

// What the page shows to be done by hand works, where the tools are installed.
func TestProtocolPageByHand(t *testing.T) {
	d := newDaemon(t)
	c := d.client()
	examples := regexp.MustCompile(`(?s)<!-- run: ([^\n]+) -->\n\x60{3}(sh|ruby)\n(.*?)\x60{3}`).FindAllStringSubmatch(protocolPage(t), -1)
	if len(examples) < 2 {
		t.Errorf("only %d examples found", len(examples))
	}
	for _, m := range examples {
		t.Run(m[1], func(t *testing.T) {
			for _, tool := range strings.Fields(m[1]) {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skipf("%v; make setup installs it", err)
				}
			}
			if out, err := exec.Command("ruby", "-rmsgpack", "-e", "").CombinedOutput(); m[2] == "ruby" && err != nil {
				t.Skipf("ruby has no msgpack; make setup installs ruby-msgpack: %s", out)
			}
			before := nextID(t, c)
			cmd := exec.Command(m[2], "-e", m[3])
			if m[2] == "sh" {
				cmd = exec.Command("sh", "-e", "-c", m[3])
			}
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "KAZAHANA_SOCKET="+d.Socket)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			after := nextID(t, c)
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			id, err := ParseID(lines[0])
			if answer, ok := strings.CutPrefix(lines[0], "940101c0cf"); ok {
				id, err = ParseID("0x" + answer)
			}
			if err != nil || id <= before || id >= after {
				t.Errorf("%d is not between %d and %d: %v\n%s", id, before, after, err, out)
			}
			if m[1] == "ruby" && (len(lines) != 4 || !slices.IsSorted(lines)) {
				t.Errorf("Ruby found %q", lines)
			}
		})
	}
}
