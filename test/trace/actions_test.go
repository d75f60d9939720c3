package trace

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// guardCase is a trace that breaks one guard.
type guardCase[T any] struct {
	name, want string
	put        func(*T)
}

// eachGuard sees that each of the cases is refused, and that each refusal in the files has one.
func eachGuard[T any](t *testing.T, files []string, cases []guardCase[T], example func() T, check func(T) Result) {
	t.Helper()
	guards := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		guards += strings.Count(string(text), ".breaks(")
	}
	if guards != len(cases) {
		t.Errorf("%v have %d guards, and there are %d cases", files, guards, len(cases))
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			x := example()
			test.put(&x)
			if r := check(x); !strings.Contains(strings.Join(r.Broken, "\n"), test.want) {
				t.Errorf("found %q, want %q", r.Broken, test.want)
			}
		})
	}
}

// nth returns the index of the nth step that matches, counted from 0.
func nth[S any](steps []S, n int, matches func(S) bool) int {
	for i, s := range steps {
		if matches(s) {
			if n--; n < 0 {
				return i
			}
		}
	}
	panic("there is no such step")
}

// actionName is a name with arguments, or at the end of a line: others are sets and numbers.
var actionName = regexp.MustCompile(`(?m)\b([A-Z][a-z]\w*)(?:\(|$)`)

// actionsOf returns the names of a specification's actions. They stand in Next, and in Pool.tla
// also in Usual, the part of Next above it.
func actionsOf(t *testing.T, module string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/model/" + module + ".tla")
	must.Succeed(t, err)
	begin := "\nNext ==\n"
	if module == "Pool" {
		begin = "\nUsual ==\n"
	}
	_, next, found := strings.Cut(string(text), begin)
	next, _, ends := strings.Cut(next, "\n\nSpec ==")
	if !found || !ends {
		t.Fatalf("%s.tla has no Next", module)
	}
	names := map[string]bool{}
	for _, found := range actionName.FindAllStringSubmatch(next, -1) {
		names[found[1]] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// TestEachActionIsFollowed: the checkers have the actions of the specifications, by their names.
func TestEachActionIsFollowed(t *testing.T) {
	for module, have := range map[string][]string{
		"Locks":     slices.Sorted(maps.Keys(lockActions)),
		"Placement": slices.Sorted(maps.Keys(placeActions)),
		"Pool":      PoolActions(),
	} {
		if actions := actionsOf(t, module); !slices.Equal(actions, have) || len(actions) < 10 {
			t.Errorf("%s.tla has the actions %q, and the checker %q", module, actions, have)
		}
	}
}
