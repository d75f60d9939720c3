package architecture

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// codesIn returns the error codes that the files declare, in any language.
func codesIn(t *testing.T, declaration string, files ...string) (codes []string) {
	t.Helper()
	for _, file := range files {
		for _, m := range regexp.MustCompile(declaration).FindAllStringSubmatch(readFile(t, file), -1) {
			codes = append(codes, m[1])
		}
	}
	slices.Sort(codes)
	if len(slices.Compact(slices.Clone(codes))) != len(codes) {
		t.Errorf("%v declare a code twice: %v", files, codes)
	}
	if len(codes) == 0 {
		t.Fatalf("%v declare no codes: the test reads them wrongly", files)
	}
	return codes
}

// The codes of errors are the same in every client, are those of the daemon and
// the few that arise without one, and docs/protocol.md tells of each.
func TestErrorCodesAreTheSameInAllLanguages(t *testing.T) {
	clients := codesIn(t, `Err\w+ +(?:kazahana\.)?Code = "([A-Z_]+)"`, "clients/go/errors.go", "clients/go/lock_errors.go", "clients/go/placement/errors.go")
	for language, codes := range map[string][]string{
		"Python": codesIn(t, `(?m)^class .*, code="([A-Z_]+)"\):`, "clients/python/src/kazahana/errors.py", "clients/python/src/kazahana/lockerrors.py", "clients/python/placement/src/kazahana_placement/errors.py"),
		"Node":   codesIn(t, `extends (?:KazahanaError\.)?coded\('([A-Z_]+)'\)`, "clients/node/src/errors.ts", "clients/node/src/lockerrors.ts", "clients/node/placement/src/errors.ts"),
		"Java":   codesIn(t, `entry\("([A-Z_]+)", \w+Exception::new\)`, "clients/java/kazahana-client/src/main/java/io/github/kazahana/KazahanaException.java"),
	} {
		if !slices.Equal(codes, clients) {
			t.Errorf("%s has the codes %v\nGo has %v", language, codes, clients)
		}
	}

	daemon := codesIn(t, `(?i:code)\w+ +(?:wire\.)?Code = "([A-Z_]+)"`, "internal/wire/error.go", "internal/daemon/errors.go")
	own := []string{"CLIENT_CLOSED", "DAEMON_UNAVAILABLE", "LOCK_LOST", "PROTOCOL_ERROR", "WATCH_ENDED"}
	// Mistakes in a client and in the daemon: no program should expect them.
	mistakes := []string{"INTERNAL", "PARSE_ERROR"}
	want := slices.Sorted(slices.Values(append(slices.DeleteFunc(slices.Clone(daemon), func(c string) bool {
		return slices.Contains(mistakes, c)
	}), own...)))
	if !slices.Equal(clients, want) {
		t.Errorf("the clients have the codes %v\nthe daemon's and their own are %v", clients, want)
	}

	page := readDoc(t, "protocol.md")
	for _, code := range append(daemon, own...) {
		if !strings.Contains(page, "`"+code+"`") {
			t.Errorf("docs/protocol.md does not tell of %s", code)
		}
	}
}
