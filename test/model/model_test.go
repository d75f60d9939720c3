package model

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

var full = flag.Bool("model.full", false, "search all worlds to their end, not only those of make check")

// specification is one module, with the worlds in which it is searched to the end and
// the rules without which a world breaks a promise.
type specification struct {
	module   string
	promises []string
	lemmas   map[string]string // what the argument goes through -> a rule without which it fails
	bounds   map[string]int    // unless a world has others
	worlds   []bounded
	rules    []rule
	lines    map[string]line
	breaks   map[string]string // promise -> how a story ends that breaks it
}

// bounded is a world in which all invariants hold.
type bounded struct {
	faults []string
	bounds map[string]int
	name   string // in the file of figures
	brief  bool   // make check searches it too
}

// rule is a rule that a specification can switch off, with a world where that shows.
type rule struct {
	name, text string
	bounded
}

func faults(names ...string) []string { return names }

var pool = specification{
	module:   "Pool",
	promises: []string{"NoTwin", "Ascends"},
	lemmas:   map[string]string{"GrantsApart": "4", "OneUser": "13", "ReleasedIsGone": "8"},
	bounds:   map[string]int{"Daemons": 2, "MaxTime": 3, "Term": 2, "Quarantine": 1, "MaxGrants": 2, "MaxAccidents": 3},
	worlds: []bounded{
		{name: "Pool", brief: true},
		{name: "Pool, three leases in a row", bounds: map[string]int{"MaxGrants": 3, "MaxTime": 2, "Term": 1, "Quarantine": 0}},
		{name: "Pool, layouts", faults: faults("layouts"), bounds: map[string]int{"MaxTime": 1, "Term": 1}},
		{name: "Pool, layouts, extend", faults: faults("layouts", "extend"), bounds: map[string]int{"MaxTime": 1, "Quarantine": 0}},
		{name: "Pool, layouts, extend, short leases", faults: faults("layouts", "extend"), bounds: map[string]int{"MaxTime": 1, "Term": 1, "Quarantine": 0}, brief: true},
		{name: "Pool, store", faults: faults("store"), bounds: map[string]int{"MaxTime": 2, "Term": 1, "MaxAccidents": 2}},
		{name: "Pool, store, extend", faults: faults("store", "extend"), bounds: map[string]int{"MaxTime": 2, "Quarantine": 0, "MaxAccidents": 2}},
		{name: "Pool, store, short", faults: faults("store"), bounds: map[string]int{"MaxTime": 1, "Term": 1, "MaxAccidents": 2}, brief: true},
		{name: "Pool, boot", faults: faults("boot"), bounds: map[string]int{"MaxTime": 2, "Term": 1, "MaxAccidents": 2}},
		{name: "Pool, copies, boot", faults: faults("copies", "boot"), bounds: map[string]int{"MaxTime": 2, "MaxGrants": 1, "MaxAccidents": 2}, brief: true},
		{name: "Pool, folders, copies", faults: faults("folders", "copies"), bounds: map[string]int{"MaxTime": 1, "Term": 1, "MaxAccidents": 2, "MaxGrants": 1}, brief: true},
		{name: "Pool, files", faults: faults("files"), bounds: map[string]int{"MaxTime": 2, "MaxGrants": 1}},
		{name: "Pool, files, short", faults: faults("files"), bounds: map[string]int{"MaxTime": 1, "Term": 1, "MaxGrants": 1, "MaxAccidents": 2}, brief: true},
		{name: "Pool, disk, boot", faults: faults("disk", "boot"), bounds: map[string]int{"MaxTime": 2, "MaxGrants": 1}},
		{name: "Pool, disk, boot, short", faults: faults("disk", "boot"), bounds: map[string]int{"MaxTime": 1, "Term": 1, "MaxGrants": 1, "MaxAccidents": 2}, brief: true},
	},
	rules: []rule{
		{"1", "the embedded timestamp is checked against the lease", bounded{}},
		{"2", "a slot's record is kept", bounded{}},
		{"3", "a release sets end = max(timestamp+1, created)", bounded{}},
		{"4", "slots are compared as ranges", bounded{faults: faults("layouts")}},
		{"5", "a slot is reserved until expired + quarantine", bounded{}},
		{"6", "a restored store is fenced", bounded{faults: faults("store")}},
		{"7", "the generator is sealed before the release is sent", bounded{}},
		{"8", "a lease leaves the live state before its release is sent", bounded{}},
		{"9", "a release's timestamp is at least the last embedded one", bounded{}},
		{"10", "a released lease is never the cached one", bounded{}},
		{"11", "a lease whose release was not answered is gone", bounded{}},
		{"12", "a release is sent once", bounded{}},
		{"13", "an answer counts for its own request only", bounded{}},
		{"14", "the mark is exclusive", bounded{}},
		{"15", "the mark is in the live state", bounded{}},
		{"16", "leases are adopted from the live state only", bounded{faults: faults("boot")}},
		{"17", "one process uses an identity", bounded{faults: faults("copies")}},
		{"18", "leases belong to one folder", bounded{faults: faults("folders")}},
		{"19", "leases belong to one marks file", bounded{faults: faults("files")}},
		{"20", "an older leases file is refused", bounded{faults: faults("files")}},
		{"21", "leases are adopted in the same boot of the same machine", bounded{faults: faults("disk")}},
		{"extend", "an extension waits for all that overlap", bounded{faults: faults("layouts", "extend")}},
		{"extend fenced", "a restored store extends nothing while it is fenced", bounded{faults: faults("store", "extend"), bounds: map[string]int{"MaxTime": 2, "Quarantine": 0, "MaxAccidents": 2}}},
	},
	lines: poolLines,
	breaks: map[string]string{
		"NoTwin":  "now the same ID can be made again",
		"Ascends": "now a smaller ID can follow in the same folder",
	},
}

var locks = specification{
	module:   "Locks",
	promises: []string{"OneHolder", "TokensRise", "Once", "Answered"},
	bounds:   map[string]int{"Hosts": 2, "MaxTime": 2, "Term": 2, "MaxRequests": 3, "MaxWrites": 4, "MaxLives": 2, "Memory": 0},
	worlds: []bounded{
		{name: "Locks", bounds: map[string]int{"MaxTime": 1, "MaxRequests": 2}, brief: true},
		{name: "Locks, two ticks", bounds: map[string]int{"MaxRequests": 2, "MaxWrites": 3}},
		{name: "Locks, three requests", bounds: map[string]int{"MaxTime": 0, "MaxWrites": 5}},
		{name: "Locks, forget", faults: faults("forget"), bounds: map[string]int{"MaxTime": 1, "Term": 1, "MaxRequests": 2, "MaxWrites": 2}, brief: true},
		{name: "Locks, one answer", bounds: map[string]int{"MaxTime": 0, "MaxWrites": 5, "Memory": 1}, brief: true},
		{name: "Locks, two answers", bounds: map[string]int{"MaxTime": 1, "Term": 1, "MaxRequests": 2, "Memory": 2}},
	},
	rules: []rule{
		{"version", "a commit compares the version on which the decision rests", bounded{}},
		{"floor compared", "a commit that relies on absence compares the floor", bounded{bounds: map[string]int{"Term": 1}}},
		{"floor", "the floor rises when a record is deleted", bounded{bounds: map[string]int{"Term": 1}}},
		{"life", "a commit compares the life of the store", bounded{faults: faults("forget")}},
		{"fence", "a store that has forgotten grants nothing until all has ended that may be missing", bounded{faults: faults("forget")}},
		{"floor of a life", "the tokens of a life begin above those of all lives before", bounded{faults: faults("forget")}},
		{"sending", "a host counts the end of a lease from before it sent the request", bounded{}},
		{"left", "a repeated answer shows what is left of the lease", bounded{}},
		{"cut off", "a holder stops relying on the lock before its release is sent", bounded{}},
		{"named", "a release names the lease", bounded{bounds: map[string]int{"MaxTime": 0, "MaxRequests": 4, "MaxWrites": 5}}},
		{"not twice", "a request that is remembered is not carried out again", bounded{bounds: map[string]int{"MaxTime": 0, "Memory": 1}}},
		{"ended acquire", "an acquire is remembered when its lease is not the latest any more", bounded{bounds: map[string]int{"Term": 1, "Memory": 2}}},
		{"acquire apart", "the acquire of the latest lease is remembered apart from renewals", bounded{bounds: map[string]int{"MaxTime": 0, "Memory": 1}}},
		{"releases apart", "releases are remembered apart from acquires and renewals", bounded{bounds: map[string]int{"MaxTime": 0, "Memory": 1}}},
	},
	lines: lockLines,
	breaks: map[string]string{
		"OneHolder":  "now two hosts rely on the lock",
		"TokensRise": "now a token has not risen",
		"Once":       "now a request was carried out twice",
		"Answered":   "now the store refuses a request that it has carried out",
	},
}

var placement = specification{
	module:   "Placement",
	promises: []string{"OneLive", "TokensRise"},
	bounds:   map[string]int{"Hosts": 2, "MaxTime": 1, "TTL": 2, "Promise": 1, "Patience": 2, "MaxTokens": 2, "MaxLives": 2},
	worlds: []bounded{
		{name: "Placement", brief: true},
		{name: "Placement, crash", faults: faults("crash"), brief: true},
		{name: "Placement, short memberships", bounds: map[string]int{"MaxTime": 2, "TTL": 1}},
	},
	rules: []rule{
		{"ended", "nobody takes over while the old owner's membership lasts", bounded{}},
		{"newer", "a record is replaced by newer ones alone", bounded{}},
		{"token kept", "a removed record leaves its token", bounded{}},
		{"counted from before", "a membership is counted from before", bounded{bounds: map[string]int{"MaxTime": 2}}},
		{"in time", "nothing is begun after the membership", bounded{bounds: map[string]int{"MaxTime": 2, "TTL": 1}}},
		{"kept", "what is activated keeps the membership", bounded{}},
		{"bounded", "a promise ends with the membership", bounded{bounds: map[string]int{"MaxTime": 2, "TTL": 1}}},
		{"short", "a promise ends before the patience", bounded{bounds: map[string]int{"MaxTime": 2, "TTL": 3}}},
		{"patience", "a silent process may still rely on it", bounded{}},
	},
	lines: placementLines,
	breaks: map[string]string{
		"OneLive":    "now two processes rely on the actor",
		"TokensRise": "now a token has not risen",
	},
}

var objects = specification{
	module:   "Objects",
	promises: []string{"NoTwin", "Fenced"},
	bounds:   map[string]int{"Procs": 2, "MaxTime": 1, "Term": 1, "MaxGrants": 2, "MaxCloses": 1, "MaxHeads": 1},
	worlds: []bounded{
		{name: "Objects", brief: true},
		{name: "Objects, head", faults: faults("head"), bounds: map[string]int{"MaxCloses": 0, "MaxHeads": 2}, brief: true},
		{name: "Objects, extend", faults: faults("extend"), bounds: map[string]int{"MaxTime": 2, "Term": 2}, brief: true},
		{name: "Objects, closed twice", bounds: map[string]int{"MaxCloses": 2}},
	},
	rules: []rule{
		{"values", "a grant begins when what its object records has ended", bounded{}},
		{"confirm", "a grant counts once its holder has found the head open and unchanged after its write", bounded{}},
		{"generation", "each closing changes the head's generation", bounded{}},
		{"list after", "the slots are listed after the head was found closed", bounded{}},
		{"compared", "the head that is opened is the one that was found closed", bounded{bounds: map[string]int{"MaxCloses": 2}}},
		{"fence", "a fence lasts until the greatest end", bounded{}},
		{"noted", "after a change of the layout no grant begins before the greatest end", bounded{}},
		{"others", "under a new head no grant begins before the ends in other layouts", bounded{faults: faults("head"), bounds: map[string]int{"MaxCloses": 0, "MaxHeads": 2}}},
		{"born closed", "a new head is closed until the slots were listed", bounded{faults: faults("head"), bounds: map[string]int{"MaxCloses": 0, "MaxHeads": 2}}},
		{"uid", "a head that was made anew is another one", bounded{faults: faults("head"), bounds: map[string]int{"MaxCloses": 0, "MaxHeads": 2}}},
		{"extension", "an extension is confirmed as a grant is", bounded{faults: faults("extend"), bounds: map[string]int{"MaxTime": 2, "Term": 2}}},
	},
	lines: objectLines,
	breaks: map[string]string{
		"NoTwin": "now two grants that are used overlap",
		"Fenced": "now a grant from before the fence outlasts it",
	},
}

func (s specification) world(b bounded, off string) world {
	w := world{module: s.module, promises: s.promises, faults: b.faults, off: off, bounds: maps.Clone(s.bounds)}
	maps.Copy(w.bounds, b.bounds)
	return w
}

// need ends the test where TLC is missing.
func need(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("java"); err != nil {
		t.Skip("no java: scripts/setup installs it")
	}
	if _, err := os.Stat(jar); err != nil {
		t.Skip("no TLC: scripts/setup brings it")
	}
}

// figuresFile has what TLC finds in each world, and without each rule.
const figuresFile = "figures.txt"

// TestPromisesHold: all invariants hold in every state of the worlds, and there are as many states
// as the file of figures says.
func TestPromisesHold(t *testing.T) {
	ring.Deep(t)
	need(t)
	for _, s := range []specification{pool, locks, placement, objects} {
		for _, b := range s.worlds {
			if !*full && !b.brief {
				continue
			}
			w := s.world(b, "")
			w.promises = slices.Concat(w.promises, slices.Sorted(maps.Keys(s.lemmas)))
			o := check(t, w)
			if o.broken != "" { // seeds 002-4-3 and 004-59
				story, err := tell(s.lines, o.steps)
				t.Fatalf("%s with the faults %v: %s does not hold (%v):\n%s", s.module, w.faults, o.broken, err, strings.Join(story, "\n"))
			}
			t.Logf("%s | %s | %d | %d", b.name, boundsOf(w), o.states, o.depth)
			if row := figuresOf(t, b.name); row.states != o.states || row.depth > o.depth || row.depth+overshoot < o.depth {
				t.Errorf("%s says that %s has %d states to a depth of %d; TLC says %d and %d", figuresFile, b.name, row.states, row.depth, o.states, o.depth)
			}
		}
	}
}

// overshoot is by how much TLC may take a search for deeper than it is: where several workers
// search, some are ahead of the others.
const overshoot = 2

// TestCheckHasEachFault: make check has a world for each kind of fault, and each world has its line
// in the file of figures, with its bounds.
func TestCheckHasEachFault(t *testing.T) {
	for _, s := range []specification{pool, locks, placement, objects} {
		had := map[string]bool{}
		for _, b := range s.worlds {
			for _, f := range b.faults {
				had[f] = had[f] || b.brief
			}
			unlike := maps.Clone(b.bounds)
			maps.DeleteFunc(unlike, func(name string, n int) bool { return s.bounds[name] == n })
			if row := figuresOf(t, b.name); !maps.Equal(row.bounds, unlike) {
				t.Errorf("%s says that %s has the bounds %v; it has %v", figuresFile, b.name, row.bounds, unlike)
			}
		}
		for _, found := range faultKinds.FindAllStringSubmatch(read(t, s.module+".tla"), -1) {
			if !had[found[1]] {
				t.Errorf("make check has no world of %s with the fault %q", s.module, found[1])
			}
		}
	}
}

var faultKinds = regexp.MustCompile(`Fault\("([^"]+)"\)`)

// figures are what the file says of a world.
type figures struct {
	bounds        map[string]int
	states, depth int
}

// figuresOf reads the line of a world.
func figuresOf(t *testing.T, name string) figures {
	t.Helper()
	f := figures{bounds: map[string]int{}}
	row := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` \| ([^|]+) \| ([0-9,]+) \| (\d+)$`).FindStringSubmatch(read(t, figuresFile))
	if row == nil {
		t.Fatalf("%s has no line for %s", figuresFile, name)
	}
	for bound := range strings.SplitSeq(row[1], ", ") {
		if name, n, found := strings.Cut(bound, " "); found {
			f.bounds[name], _ = strconv.Atoi(n)
		}
	}
	f.states, _ = strconv.Atoi(strings.ReplaceAll(row[2], ",", ""))
	f.depth, _ = strconv.Atoi(row[3])
	return f
}

// read returns a file beside the specifications.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(specifications, name))
	must.Succeed(t, err)
	return string(text)
}

// TestEachRuleIsNeeded: without any of the rules a promise is broken.
func TestEachRuleIsNeeded(t *testing.T) {
	ring.Deep(t)
	need(t)
	listed, number := read(t, figuresFile), 0
	for _, s := range []specification{pool, locks, placement, objects} {
		for _, r := range s.rules {
			if number++; !ring.Sampled(t, number) {
				continue
			}
			w := s.world(r.bounded, r.name)
			o := check(t, w)
			if o.broken == "" { // seed 002-4-3
				t.Errorf("%s without %q: all promises hold in %d states, so the rule is not needed or the world too small", s.module, r.text, o.states)
				continue
			}
			story, err := tell(s.lines, o.steps)
			must.Succeed(t, err)
			row := fmt.Sprintf("%s %s | %s | %s | %d", s.module, r.name, r.text, o.broken, len(story))
			t.Logf("%s\n\t%s\n\t%s", row, strings.Join(story, "\n\t"), s.breaks[o.broken])
			if !strings.Contains(listed, "\n"+row+"\n") {
				t.Errorf("%s lacks the line %s", figuresFile, row)
			}
		}
	}
}

// TestEachLemmaCanFail: a lemma that holds under any rules says nothing.
func TestEachLemmaCanFail(t *testing.T) {
	ring.Deep(t)
	need(t)
	for _, s := range []specification{pool, locks, placement, objects} {
		for _, lemma := range slices.Sorted(maps.Keys(s.lemmas)) {
			at := slices.IndexFunc(s.rules, func(r rule) bool { return r.name == s.lemmas[lemma] })
			w := s.world(s.rules[at].bounded, s.rules[at].name)
			w.promises = []string{lemma}
			if o := check(t, w); o.broken != lemma {
				t.Errorf("%s: %s holds in all of %d states without %q", s.module, lemma, o.states, s.rules[at].text)
			}
		}
	}
}

func boundsOf(w world) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(w.bounds)) {
		list = append(list, fmt.Sprintf("%s %d", name, w.bounds[name]))
	}
	return strings.Join(list, ", ")
}

var switches = regexp.MustCompile(`On\("([^"]+)"\)`)

// TestFiguresHaveTheRules: the file of figures has the rules that the specifications can
// switch off.
func TestFiguresHaveTheRules(t *testing.T) {
	file := read(t, figuresFile)
	for _, s := range []specification{pool, locks, placement, objects} {
		listed := map[string]bool{}
		for _, r := range s.rules {
			listed[r.name] = true
			if row := fmt.Sprintf("\n%s %s | %s | ", s.module, r.name, r.text); !strings.Contains(file, row) {
				t.Errorf("%s has no line that begins with %q", figuresFile, row)
			}
		}
		inModule := map[string]bool{}
		for _, found := range switches.FindAllStringSubmatch(read(t, s.module+".tla"), -1) {
			inModule[found[1]] = true
		}
		if !maps.Equal(listed, inModule) {
			t.Errorf("%s.tla switches %v; the rules here are %v", s.module, slices.Sorted(maps.Keys(inModule)), slices.Sorted(maps.Keys(listed)))
		}
	}
}
