package embed_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/kazahana/kazahana/embed"
	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// makeIDs is a program that prints IDs until it is killed: state directory, live
// directory, provider.
func makeIDs(args []string) error {
	g, err := embed.Open(context.Background(), embed.Config{
		StateDir: args[0], LiveDir: args[1], Provider: args[2], StartupWait: time.Minute, ProviderTimeout: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	for {
		id, err := patiently(context.Background(), g)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, id)
		if out.Buffered() > 1<<10 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

// maker is a process that makes IDs.
type maker struct {
	cmd *exec.Cmd
	ids *bufio.Scanner
}

func startMaker(t *testing.T, c embed.Config) *maker {
	t.Helper()
	cmd := exec.Command(os.Args[0], c.StateDir, c.LiveDir, c.Provider)
	cmd.Env = append(os.Environ(), testkit.ChildEnv+"=maker")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	m := &maker{cmd, bufio.NewScanner(out)}
	t.Cleanup(m.kill)
	return m
}

func (m *maker) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// next reads n IDs.
func (m *maker) next(t *testing.T, n int) (ids []int64) {
	t.Helper()
	for len(ids) < n {
		if !m.ids.Scan() {
			t.Fatalf("the process ended after %d IDs", len(ids))
		}
		id, err := strconv.ParseInt(m.ids.Text(), 10, 64)
		must.Succeed(t, err)
		ids = append(ids, id)
	}
	return ids
}

// A program that is killed with -9 goes on with its lease: its IDs increase across its
// lives, all regular. Another program beside it makes none of them.
func TestKilledProgram(t *testing.T) {
	ring.All(t)
	c := patient(t)
	neighbour := c
	neighbour.StateDir += "-2"
	beside := startMaker(t, neighbour)
	all := map[int64]string{}
	note := func(who string, ids []int64, after int64) (last int64) {
		t.Helper()
		for last = after; len(ids) > 0; ids = ids[1:] {
			if ids[0] <= last || isFallback(ids[0]) || all[ids[0]] != "" {
				t.Fatalf("%s: %d after %d; made before by %q, fallback: %v", who, ids[0], last, all[ids[0]], isFallback(ids[0]))
			}
			last = ids[0]
			all[last] = who
		}
		return last
	}
	var last, lastBeside int64
	for life := range 6 {
		m := startMaker(t, c)
		last = note("life "+strconv.Itoa(life), m.next(t, 2000), last)
		lastBeside = note("neighbour", beside.next(t, 1000), lastBeside)
		m.kill()
		last = note("life "+strconv.Itoa(life), rest(m), last) // its last writes
	}
}

// initLeases does what kazahanad leases init does for a new Redis.
func initLeases(t *testing.T, url string) {
	t.Helper()
	p, err := backend.OpenProvider(url, backend.ProviderOptions{})
	must.Succeed(t, err)
	must.Succeed(t, errors.Join(p.Init(t.Context(), "default"), p.Close()))
}

// A program that this one has started holds nothing of the state directory.
func TestStartedProgramInheritsNothing(t *testing.T) {
	ring.All(t)
	c := patient(t)
	g := open(t, c)
	nextID(t, g)
	child := exec.Command("sleep", "600")
	must.Succeed(t, child.Start())
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	must.Succeed(t, g.Close())
	nextID(t, open(t, c))
}

// rest reads the whole lines that a killed process left.
func rest(m *maker) (ids []int64) {
	var lines []string
	for m.ids.Scan() {
		lines = append(lines, m.ids.Text())
	}
	if len(lines) > 0 {
		lines = lines[:len(lines)-1] // may be cut off
	}
	for _, line := range lines {
		if id, err := strconv.ParseInt(line, 10, 64); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// A state directory belongs to one process, be it a program or a daemon. Beside a daemon,
// with a directory of its own, a program has another machine ID from the same file.
func TestBesideADaemon(t *testing.T) {
	s := testkit.NewSite(t)
	s.Start()
	c := embed.Config{StateDir: s.State, LiveDir: s.Live, StartupWait: time.Minute, ProviderTimeout: 30 * time.Second}
	c.Provider = "sqlite:" + filepath.Join(s.State, "leases.db")
	_, err := embed.Open(t.Context(), c)
	var used *embed.StateInUseError
	if !errors.As(err, &used) || used.PID == 0 || !strings.Contains(err.Error(), "one daemon per state directory") {
		t.Errorf("%v", err)
	}
	client := s.Dial()
	id := client.ID()
	c.StateDir = s.Path("program")
	g := open(t, c)
	own := nextID(t, g)
	if a, b := s.Inspected(id).MachineID, g.Status().Leases[0].MachineID; a == b || own == int64(id) {
		t.Errorf("both have machine ID %d", a)
	}
	if n, err := g.NextSequence(t.Context(), "orders"); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	// One process owns the file of sequences.
	if err := client.Try("Sequence.Next", nil, "orders"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d owns the file", os.Getpid())) {
		t.Errorf("the daemon: %v", err)
	}
	must.Succeed(t, g.Close())
	var value int64
	if client.Must("Sequence.Next", &value, "orders"); value != 2 {
		t.Errorf("the daemon goes on with %d", value)
	}
}

// A program has its own SQLite database beside the generator's files, with the same driver and
// in WAL mode: it works as it does without them, before, meanwhile and afterwards.
func TestDatabaseOfTheProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "own.db")
	own, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)")
	must.Succeed(t, err)
	defer own.Close()
	_, err = own.Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
	must.Succeed(t, err)
	ask := func(query string) (text string) {
		t.Helper()
		must.Succeed(t, own.QueryRow(query).Scan(&text))
		return text
	}
	settings := func() (all string) {
		t.Helper()
		for _, name := range []string{"journal_mode", "synchronous", "locking_mode", "cache_spill", "wal_autocheckpoint"} {
			all += name + "=" + ask("PRAGMA "+name) + " "
		}
		return all
	}
	own.SetMaxOpenConns(1) // the settings are those of a connection
	before := settings()
	g := open(t, patient(t))
	for i := range 100 {
		_, err := own.Exec("INSERT INTO orders VALUES (?)", nextID(t, g))
		must.Succeed(t, err)
		if i%10 == 0 {
			_, err := g.NextSequence(t.Context(), "k")
			must.Succeed(t, err)
		}
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if info, err := os.Stat(path + suffix); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", suffix, info, err)
		}
	}
	must.Succeed(t, g.Close())
	_, err = own.Exec("INSERT INTO orders VALUES (1)")
	must.Succeed(t, err)
	if rows, whole, after := ask("SELECT count(*) FROM orders"), ask("PRAGMA integrity_check"), settings(); rows != "101" || whole != "ok" || after != before {
		t.Errorf("%s rows, %s; the settings are %q and were %q", rows, whole, after, before)
	}
}

// A provider that goes away: the slot of the last lease serves on, marked as fallback,
// and as uncertain where the machine is too slow to see it before its reservation ends.
// When it is back, IDs are regular and above all others.
func TestProviderGoes(t *testing.T) {
	server := redistest.New(t)
	c := patient(t)
	c.Provider = "redis+unix:" + server.Sock + "?term=1s&quarantine=3s&prefix=shop:"
	initLeases(t, c.Provider)
	c.ProviderTimeout, c.AcquireRetryInterval, c.AcquireRetryMaxInterval = time.Second, 50*time.Millisecond, 100*time.Millisecond
	g := open(t, c)
	last := int64(0)
	until := func(mode string) {
		t.Helper()
		await.Eventually(t, "IDs are "+mode, func() bool {
			id := nextID(t, g)
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
			return strings.HasPrefix(g.Status().Mode, mode)
		})
	}
	until("regular")                                                    // seeds 000-3.1-1 and 003-6.1-4
	if key := "shop:@leases:list"; server.Do(t, "EXISTS", key) != "1" { // seeds 003-5-5 and 003-6.1-1
		t.Errorf("there is no key %s", key)
	}
	server.Kill()
	until("fallback_cached")
	if id := nextID(t, g); !isFallback(id) {
		t.Errorf("%d is not marked", id)
	}
	server.Restart()
	until("regular")
}
