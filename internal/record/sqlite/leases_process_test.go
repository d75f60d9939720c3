package sqlite_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// childEnv names what a copy of the test binary is to do instead of testing.
const (
	childEnv     = "KAZAHANA_SQLITE_TEST_CHILD"
	childArgsEnv = "KAZAHANA_SQLITE_TEST_ARGS"
)

// childArgs is what a child is told, as JSON.
type childArgs struct {
	Path     string
	Services provider.Services
	Seed     uint64
	LiveDir  string
}

func child(t *testing.T, name string, args childArgs) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(args)
	must.Succeed(t, err)
	exe, err := os.Executable()
	must.Succeed(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+name, childArgsEnv+"="+string(data))
	return cmd
}

func runChild(name string) int {
	var args childArgs
	if err := json.Unmarshal([]byte(os.Getenv(childArgsEnv)), &args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	run := map[string]func(childArgs) error{
		"churn": childChurn, "open": childOpen,
	}[name]
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (args childArgs) open() (*backend.Leases, error) {
	return backend.OpenLeaseFile(context.Background(), backend.LeaseFile{Path: args.Path, Services: args.Services, LiveDir: args.LiveDir})
}

// childOpen opens the file, acquires once and says how that went.
func childOpen(args childArgs) error {
	p, err := args.open()
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Acquire(context.Background(), provider.AcquireRequest{})
	return err
}

// event is a line of what a churning child reports: a grant that it was given,
// or a release that it is about to ask for.
type event struct {
	Lease     lease.Lease
	ReleaseAt int64 // 0 for a grant
}

// childChurn acquires and releases without end.
func childChurn(args childArgs) error {
	random := rand.New(rand.NewPCG(args.Seed, 0))
	p, err := args.open()
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	ctx := context.Background()
	for {
		service := []string{"", "coarse"}[random.IntN(2)]
		leases, err := p.Acquire(ctx, provider.AcquireRequest{Service: service, ThroughputPerMS: random.Int64N(600)})
		var full *provider.FullError
		if err != nil && !errors.As(err, &full) {
			return err
		}
		for _, l := range leases {
			if err := out.Encode(event{Lease: l}); err != nil {
				return err
			}
			if random.IntN(2) == 0 {
				continue // left to run out
			}
			at := time.Now().UnixMilli()
			if err := out.Encode(event{Lease: l, ReleaseAt: at}); err != nil {
				return err
			}
			release := providertest.SignedRelease(l, at)
			release.Service = service
			err := p.Release(ctx, release)
			if err != nil && !errors.Is(err, provider.ErrBadSignature) { // it may have run out
				return err
			}
		}
	}
}

// TestProcessesOnOneFile has many processes acquire and release on one file,
// kills them in the middle of it again and again, and then looks at everything
// they were granted and at the file.
func TestProcessesOnOneFile(t *testing.T) {
	ring.All(t)
	const processes = 6
	lives := 8
	if testing.Short() {
		lives = 3
	}
	path, live := filepath.Join(t.TempDir(), "leases.db"), disktest.Memory(t)
	services := churnServices()
	var mu sync.Mutex
	var events []event
	var wg sync.WaitGroup
	for n := range processes {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 7))
			for range lives {
				seen, err := churnUntilKilled(t, 5+random.IntN(60), time.Duration(random.IntN(3000))*time.Microsecond,
					childArgs{Path: path, Services: services, LiveDir: live, Seed: random.Uint64()})
				mu.Lock()
				events = append(events, seen...)
				mu.Unlock()
				if err != nil {
					t.Errorf("a process failed: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	checkIntegrity(t, path)
	grants, err := checkEvents(events)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d processes were killed; they were granted %d leases", processes*lives, grants)

	// And it still grants.
	p := openLeases(t, backend.LeaseFile{Path: path, Services: services, LiveDir: live})
	for {
		_, err := p.Acquire(context.Background(), provider.AcquireRequest{})
		var full *provider.FullError
		if !errors.As(err, &full) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		time.Sleep(time.Until(time.UnixMilli(full.NextEndMS))) // what the children left
	}
	records, err := p.List(context.Background(), "")
	if err == nil {
		err = checkRecords(records)
	}
	if err != nil {
		t.Error(err)
	}
}

// churnServices share few slots for short terms, so that each is granted again
// and again, in two layouts.
func churnServices() provider.Services {
	fine := provider.DefaultTerms()
	fine.Term, fine.Quarantine = 60*time.Millisecond, 20*time.Millisecond
	coarse := fine.WithBitSeq(9)
	fine.IDs = provider.IDRange{Low: 0, End: 24}
	coarse.IDs = provider.IDRange{Low: 4, End: 16}
	return provider.Services{Default: fine, Named: map[string]provider.Terms{"coarse": coarse}}
}

// churnUntilKilled lets a child report so many events and a little longer,
// kills it wherever it is then, and returns its reports.
func churnUntilKilled(t *testing.T, reports int, longer time.Duration, args childArgs) ([]event, error) {
	cmd := child(t, "churn", args)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var seen []event
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			break // cut short by the kill
		}
		seen = append(seen, e)
		if len(seen) == reports {
			time.AfterFunc(longer, func() { cmd.Process.Kill() })
		}
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return seen, nil
	}
	return seen, fmt.Errorf("it ended with %v: %s", err, stderr.Bytes())
}

// checkEvents reports grants that overlap in slots and in time, taking each
// release as carried out from when it was about to be sent.
func checkEvents(events []event) (grants int, err error) {
	type interval struct {
		lease lease.Lease
		end   int64
	}
	all := map[lease.Key]*interval{}
	for _, e := range events {
		i, ok := all[e.Lease.Key()]
		if !ok {
			i = &interval{e.Lease, e.Lease.ReservedUntil}
			all[e.Lease.Key()] = i
		}
		if e.ReleaseAt != 0 {
			i.end = provider.ReleasedEnd(e.Lease.Created, i.end, e.ReleaseAt)
		}
	}
	var list []*interval
	for _, i := range all {
		list = append(list, i)
	}
	for n, a := range list {
		for _, b := range list[n+1:] {
			if a.lease.Slot().Overlaps(b.lease.Slot()) && a.lease.Created < b.end && b.lease.Created < a.end {
				return len(list), fmt.Errorf("%v until %d overlaps %v until %d", a.lease, a.end, b.lease, b.end)
			}
		}
	}
	return len(list), nil
}

// checkRecords reports records of grants that overlap, also of grants that no process lived to
// report.
func checkRecords(records []provider.Record) error {
	for n, a := range records {
		for _, b := range records[n+1:] {
			if a.Lease.Slot().Overlaps(b.Lease.Slot()) && a.Lease.Created < b.End && b.Lease.Created < a.End {
				return fmt.Errorf("%v until %d overlaps %v until %d", a.Lease, a.End, b.Lease, b.End)
			}
		}
	}
	return nil
}

// checkIntegrity has SQLite examine the whole file.
func checkIntegrity(t *testing.T, path string) {
	t.Helper()
	s, err := sqlitefile.Connect(context.Background(), path)
	must.Succeed(t, err)
	defer s.Close()
	var answer string
	if err := s.QueryRow("PRAGMA integrity_check", nil, &answer); err != nil || answer != "ok" {
		t.Errorf("integrity_check says %q (%v)", answer, err)
	}
}

// Of many processes that create a file at once, one does, and all use it.
func TestProcessesCreateOneFile(t *testing.T) {
	ring.All(t)
	path := filepath.Join(t.TempDir(), "a", "b", "leases.db")
	services := defaultServices()
	services.Default.IDs = provider.IDRange{Low: 0, End: 12}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			if out, err := child(t, "open", childArgs{Path: path, Services: services}).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	p := openLeases(t, backend.LeaseFile{Path: path, Services: services})
	records, err := p.List(context.Background(), "")
	if err != nil || len(records) != 12 {
		t.Errorf("%d records (%v), want one for each of 12 processes", len(records), err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	must.Succeed(t, err)
	for _, e := range entries {
		if name := e.Name(); !slices.Contains([]string{"leases.db", "leases.db-journal", "leases.db-watermark"}, name) {
			t.Errorf("%s was left behind", name)
		}
	}
}
