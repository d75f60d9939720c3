package chaos

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// restoreRow is a way to put a copy of what a daemon has back.
type restoreRow struct {
	name  string
	short bool
	tool  string                      // a program that the way needs
	ids   int                         // how many machine IDs there are; 0 = 1
	taken func(w *restoreWorld) error // follows the copying
	put   func(w *restoreWorld) error
	play  func(w *restoreWorld, frozen bool) // instead of put in each situation
	kills bool                               // only after a kill: the daemon cannot hand its lease back
}

// removeDir removes $2, also while a daemon makes files in it.
const removeDir = `rm -rf "$2" || rm -rf "$2"`

// inPlace is how marks must not be put back: see docs/uniqueness.md.
const inPlace = "in place"

// restoreWays put a whole directory, $1, back in the place of another, $2.
var restoreWays = []struct{ name, tool, script string }{
	{"rm + cp", "", removeDir + `; cp -a "$1" "$2"`},
	{"rm + tar", "", removeDir + `; mkdir "$2"; tar -C "$1" -cf - . | tar -C "$2" -xpf -`},
	{"cp " + inPlace, "", `cp -a "$1"/. "$2"/`},
	{"rsync " + inPlace, "rsync", `rsync -aI --inplace --delete "$1"/ "$2"/`},
	{"rsync by rename", "rsync", `rsync -aI --delete "$1"/ "$2"/`},
	{"file by file", "", `for f in "$1"/*; do rm -f "$2/${f##*/}"; cp -a "$f" "$2"/; done`},
}

// restoreFileWays put one file, $1, back in the place of another, $2.
var restoreFileWays = []struct{ name, script string }{
	{"older " + inPlace, `cat "$1" >"$2"`},
	{"older by rename", `cp -a "$1" "$2.put"; mv "$2.put" "$2"`},
	{"zeroed", `dd if=/dev/zero of="$2" bs="$(stat -c %s "$1")" count=1 conv=notrunc status=none`},
}

// restoreRows are all rows of the table.
func restoreRows() (rows []restoreRow) {
	const state, live, both = "state directory", "live directory", "both directories"
	short := []string{state + ": rm + cp", both + ": rm + cp", "leases: older by rename", "marks and state: older by rename"}
	add := func(name, tool string, put func(w *restoreWorld) error) {
		rows = append(rows, restoreRow{name: name, tool: tool, put: put, short: slices.Contains(short, name)})
	}
	for _, way := range restoreWays {
		add(state+": "+way.name, way.tool, func(w *restoreWorld) error { return w.putState(way.script) })
		if strings.HasSuffix(way.name, inPlace) {
			continue
		}
		add(live+": "+way.name, way.tool, func(w *restoreWorld) error { return runScript(way.script, w.folderCopy, w.folder) })
		add(both+": "+way.name, way.tool, func(w *restoreWorld) error {
			return cmp.Or(runScript(way.script, w.folderCopy, w.folder), w.putState(way.script))
		})
	}
	for _, way := range restoreFileWays {
		for _, name := range []string{"state", "lock"} {
			add("state directory's "+name+": "+way.name, "", func(w *restoreWorld) error {
				return runScript(way.script, w.stateCopy+"/"+name, w.a.State+"/"+name)
			})
		}
		for _, name := range []string{"leases", "marks", "holder"} {
			if name == "marks" && strings.HasSuffix(way.name, inPlace) {
				continue
			}
			add("live directory's "+name+": "+way.name, "", func(w *restoreWorld) error {
				return runScript(way.script, w.folderCopy+"/"+name, w.folder+"/"+name)
			})
		}
		if strings.HasSuffix(way.name, inPlace) {
			continue
		}
		add("marks and state: "+way.name, "", func(w *restoreWorld) error {
			return cmp.Or(runScript(way.script, w.folderCopy+"/marks", w.folder+"/marks"), runScript(way.script, w.stateCopy+"/state", w.a.stateFile()))
		})
	}
	rows = append(rows,
		restoreRow{
			name:  both + ": hard links",
			taken: func(w *restoreWorld) error { return runScript(`cp -al "$1" "$2.links"`, w.folder, w.folderCopy) },
			put: func(w *restoreWorld) error {
				return cmp.Or(runScript(`rm "$2"/*; mv "$1.links"/* "$2"/`, w.folderCopy, w.folder), w.putState(`cp -a "$1"/. "$2"/`))
			},
		},
		restoreRow{
			name:  both + ": live folder moved away and back",
			kills: true,
			taken: func(w *restoreWorld) error { return runScript(`mv "$1" "$1.away"`, w.folder) },
			put: func(w *restoreWorld) error {
				return cmp.Or(runScript(`rm -rf "$1"; mv "$1.away" "$1"`, w.folder), w.putState(`cp -a "$1"/. "$2"/`))
			},
		},
		restoreRow{name: state + " swapped with another daemon's", ids: 2, play: swapped(true, false)},
		restoreRow{name: live + " swapped with another daemon's", ids: 2, play: swapped(false, true)},
		restoreRow{name: both + " swapped with another daemon's", ids: 2, play: swapped(true, true), short: true},
		restoreRow{name: "a copy started first", play: copyFirst, short: true},
		restoreRow{name: "a copy started beside", play: copyBeside},
		restoreRow{name: "a copy of both started first", play: copyOfBothFirst},
	)
	return rows
}

// putState puts the state directory back, again and again until the state file
// has an inode that a file of the original had.
func (w *restoreWorld) putState(script string) error {
	for w.tries = 1; ; w.tries++ {
		err := runScript(script, w.stateCopy, w.a.State)
		if err != nil || w.tries == inodeTries || !strings.HasPrefix(script, removeDir) || w.inodes[inodeOf(w.a.stateFile())] {
			return err
		}
	}
}

// restoreSituation is what happens around a restore.
type restoreSituation struct {
	name   string
	term   time.Duration
	frozen bool // the provider is
	short  bool
	play   func(w *restoreWorld, row restoreRow, frozen bool)
}

var restoreSituations = []restoreSituation{
	{"stopped, provider reachable", time.Minute, false, false, (*restoreWorld).stopped},
	{"stopped, provider frozen", time.Minute, true, true, (*restoreWorld).stopped},
	{"stopped, provider frozen until fallback", restoreTerm, true, false, (*restoreWorld).stoppedUntilFallback},
	{"killed, provider reachable", time.Minute, false, false, (*restoreWorld).killed},
	{"killed, provider frozen", time.Minute, true, true, (*restoreWorld).killed},
	{"killed in fallback", restoreTerm, true, false, (*restoreWorld).killedInFallback},
	{"running, provider reachable", time.Minute, false, false, (*restoreWorld).running},
	{"running, provider frozen", time.Minute, true, false, (*restoreWorld).running},
	{"disk frozen", time.Minute, true, false, (*restoreWorld).diskFrozen},
}

// released has A take the lease, then B: the copy in between is A's.
func (w *restoreWorld) released(row restoreRow) {
	w.T.Helper()
	w.took(row)
	w.a.d.Terminate()
	w.b.run(0)
	w.b.awaitMode("regular")
}

// took has A take the lease, and copies its files.
func (w *restoreWorld) took(row restoreRow) {
	w.T.Helper()
	w.a.run(0)
	w.a.awaitMode("regular")
	w.asked(w.a)
	w.take()
	if row.taken != nil {
		must.Succeed(w.T, row.taken(w))
	}
}

func (w *restoreWorld) freezeServerIf(frozen bool) {
	w.T.Helper()
	if frozen {
		w.server.Signal(syscall.SIGSTOP)
	}
}

// stopped puts the copy back while A is down and B has its lease.
func (w *restoreWorld) stopped(row restoreRow, frozen bool) {
	w.T.Helper()
	w.released(row)
	must.Succeed(w.T, row.put(w))
	w.freezeServerIf(frozen)
	w.a.run(0)
	w.asked(w.a, w.b)
}

// stoppedUntilFallback goes on until B lives from its last lease.
func (w *restoreWorld) stoppedUntilFallback(row restoreRow, frozen bool) {
	w.T.Helper()
	w.stopped(row, frozen)
	w.b.awaitMode(testkit.FallbackModes...)
	w.asked(w.a, w.b)
}

// killed puts the copy back after a crash. A's clock is ahead when it crashes, and
// shows the same time once more in the next life.
func (w *restoreWorld) killed(row restoreRow, frozen bool) {
	w.T.Helper()
	const ahead = 8 * time.Second
	w.took(row)
	w.freezeServerIf(frozen)
	w.a.d.Set(ahead)
	w.again(row, time.Now().Add(ahead))
}

// killedInFallback is the same for what A makes after the end of its lease.
func (w *restoreWorld) killedInFallback(row restoreRow, _ bool) {
	w.T.Helper()
	w.took(row)
	w.server.Signal(syscall.SIGSTOP)
	w.a.awaitMode(testkit.FallbackModes...)
	w.again(row, time.Now())
}

// again has A, with its clock at that time, make IDs, then crash and make IDs at the same time by
// its clock.
func (w *restoreWorld) again(row restoreRow, at time.Time) {
	w.T.Helper()
	w.asked(w.a)
	w.a.d.Kill()
	must.Succeed(w.T, row.put(w))
	w.a.run(time.Until(at))
	w.a.d.Set(time.Until(at))
	w.askedFor(2*restoreAsking, w.a)
}

// running puts the copy back under A while B has its lease.
func (w *restoreWorld) running(row restoreRow, frozen bool) {
	w.T.Helper()
	w.released(row)
	w.freezeServerIf(frozen)
	w.a.run(0)
	must.Succeed(w.T, row.put(w))
	w.asked(w.a, w.b)
	w.a.d.Kill()
	w.a.run(0)
	w.asked(w.a, w.b)
}

// diskFrozen stops A, and begins the restore, while the disk of A's state
// directory is frozen.
func (w *restoreWorld) diskFrozen(row restoreRow, _ bool) {
	w.T.Helper()
	w.took(row)
	w.disk.Freeze()
	w.a.d.Signal(syscall.SIGTERM)
	w.b.run(0)
	w.b.awaitMode("regular")
	wait := inBackground(func() error { return row.put(w) })
	testkit.Pause(w.T, restoreAsking)
	w.disk.Thaw()
	w.a.d.AwaitEnd()
	must.Succeed(w.T, wait())
	w.server.Signal(syscall.SIGSTOP)
	w.a.run(0)
	w.asked(w.a, w.b)
}

// swapped has two daemons exchange directories while they are down.
func swapped(state, live bool) func(w *restoreWorld, frozen bool) {
	const exchange = `mv "$1" "$1.other"; mv "$2" "$1"; mv "$1.other" "$2"`
	return func(w *restoreWorld, frozen bool) {
		w.T.Helper()
		w.b = w.issuer("B", filepath.Join(w.home, "b"))
		w.a.run(0)
		w.b.run(0)
		w.a.awaitMode("regular")
		w.b.awaitMode("regular")
		w.asked(w.a, w.b)
		a, b := w.a.Dial().Status().LiveDir, w.b.Dial().Status().LiveDir
		w.a.d.Kill()
		w.b.d.Kill()
		if state {
			must.Succeed(w.T, runScript(exchange, w.a.State, w.b.State))
		}
		if live {
			must.Succeed(w.T, runScript(exchange, a, b))
		}
		w.freezeServerIf(frozen)
		w.a.run(0)
		w.b.run(0)
		w.asked(w.a, w.b)
	}
}

// copyFirst has a copy of a crashed daemon's state directory start before it.
func copyFirst(w *restoreWorld, frozen bool) {
	w.T.Helper()
	w.took(restoreRow{})
	w.a.d.Kill()
	w.freezeServerIf(frozen)
	c := w.issuer("C", w.stateCopy)
	c.run(0)
	w.a.run(0)
	w.asked(w.a, c)
	c.d.Kill()
	w.a.d.Kill()
	w.a.run(0)
	c.run(0)
	w.asked(w.a, c)
}

// copyBeside has a copy of a daemon's state directory start while the daemon runs.
func copyBeside(w *restoreWorld, frozen bool) {
	w.T.Helper()
	w.took(restoreRow{})
	w.freezeServerIf(frozen)
	c := w.issuer("C", w.stateCopy)
	c.run(0)
	w.asked(w.a, c)
	w.a.d.Kill()
	c.d.Kill()
	c.run(0)
	w.a.run(0)
	w.asked(w.a, c)
}

// copyOfBothFirst has a copy of both directories start before the original.
func copyOfBothFirst(w *restoreWorld, frozen bool) {
	w.T.Helper()
	w.took(restoreRow{})
	w.a.d.Kill()
	w.freezeServerIf(frozen)
	c := w.issuer("C", w.stateCopy)
	c.live = disktest.Memory(w.T)
	must.Succeed(w.T, runScript(`cp -a "$1" "$2/${3##*/}"`, w.folderCopy, c.live, w.folder))
	c.run(0)
	w.a.run(0)
	w.asked(w.a, c)
}

// TestChaosRestore puts copies of a daemon's directories back, and looks for IDs
// that two lives made.
func TestChaosRestore(t *testing.T) {
	ring.Deep(t)
	table := &chaosTable{columns: "COPY PUT BACK\tTRIES\tRESTORES\tREGULAR\tCACHED\tRANDOM\tEQUAL\tTHE LOG\t"}
	var mu sync.Mutex // of the table
	rows := map[string]string{}
	t.Cleanup(func() {
		for _, row := range restoreRows() {
			if text, ran := rows[row.name]; ran {
				table.rows = append(table.rows, text)
			}
		}
		table.print(t)
	})
	for _, row := range restoreRows() {
		if !*chaosFull && !row.short {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if row.tool != "" {
				ring.Program(t, row.tool)
			}
			text := row.run(t)
			mu.Lock()
			defer mu.Unlock()
			rows[row.name] = text
		})
	}
}

// run plays the row in every situation, and returns its line of the table.
func (row restoreRow) run(t *testing.T) string {
	t.Helper()
	disk := disktest.Ext4(t)
	var sum restoreResult
	tries, restores := 0, 0
	var said []string
	for n, situation := range row.situations() {
		t.Run(situation.name, func(t *testing.T) {
			w := newRestoreWorld(t, disk, fmt.Sprint(n), max(row.ids, 1), situation.term)
			situation.play(w, row, situation.frozen)
			res := w.result()
			if res.equal > 0 {
				t.Errorf("%d IDs are equal, or two lives used one machine ID in one millisecond: %s", res.equal, res.first)
			}
			sum.add(res)
			tries++
			restores += max(w.tries, 1)
			for _, text := range w.a.concluded() {
				if !slices.Contains(said, text) {
					said = append(said, text)
				}
			}
		})
	}
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t", row.name, tries, restores,
		sum.kinds[restoreRegular], sum.kinds[restoreCached], sum.kinds[restoreRandom], sum.equal, strings.Join(said, "; "))
}

// situations are the situations that the row is played in.
func (row restoreRow) situations() (all []restoreSituation) {
	if row.play != nil {
		play := func(w *restoreWorld, _ restoreRow, frozen bool) { row.play(w, frozen) }
		all = []restoreSituation{
			{"provider reachable", time.Minute, false, false, play},
			{"provider frozen", time.Minute, true, true, play},
		}
	} else {
		all = restoreSituations
	}
	return slices.DeleteFunc(slices.Clone(all), func(s restoreSituation) bool {
		return !*chaosFull && !s.short || row.kills && !strings.HasPrefix(s.name, "killed")
	})
}
