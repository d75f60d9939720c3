package sequence_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
)

// childEnv names the store that a copy of the test binary takes values from
// without end, instead of testing.
const childEnv = "KAZAHANA_SEQUENCE_TEST_CHILD"

// inFile closes the file with the store.
type inFile struct {
	*sequence.Records
	file *sqlitefile.File
}

func (o inFile) Close() error { return o.file.Close() }

func openFile(path string, opts sqlitefile.Options) (inFile, error) {
	file, err := sqlitefile.OpenStore(context.Background(), path, opts, sqlite.Tables)
	if err != nil {
		return inFile{}, err
	}
	return inFile{sequence.OnRecords(sqlite.New(file)), file}, nil
}

func newPath(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "kazahana-test-") // it need not survive anything
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, sqlitefile.StoreName)
}

func TestSQLiteConformance(t *testing.T) {
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		var clock atomic.Int64
		clock.Store(1_800_000_000_000)
		path := newPath(t)
		return sequencetest.Target{
			Open:    func() (sequence.Store, error) { return openFile(path, sqlitefile.Options{NowMS: clock.Load}) },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
		}
	})
}

// childTake says which call it begins, makes it, says what it got, and dies at
// the step of the seventh call.
func childTake(path, step string) error {
	begun := 0
	s, err := openFile(path, sqlitefile.Options{At: func(at string) error {
		if at == sqlitefile.StepBegun {
			begun++
		}
		if at == step && begun == 7 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	for {
		id := sequence.NewRequestID()
		fmt.Println("begin", id)
		got, err := s.Next(context.Background(), childRequest(id))
		if err != nil {
			return err
		}
		fmt.Println("got", got.First, got.Last())
	}
}

func childRequest(id string) sequence.Request {
	return sequence.Request{Tenant: "t", Key: "k", Count: 3, RequestID: id, Options: sequence.DefaultOptions()}
}

// A process is killed in the middle of a call, at each step of it: no value is
// handed out twice, and repeating the call leaves no gap.
func TestKilledInTheMiddle(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{sqlitefile.StepBegun, sqlitefile.StepWritten, sqlitefile.StepCommitted} {
		t.Run(step, func(t *testing.T) {
			path := newPath(t)
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), childEnv+"="+path, childEnv+"_STEP="+step)
			out, err := cmd.Output()
			if exit, ok := err.(*exec.ExitError); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended with %v: %s", err, out)
			}
			var last int64
			var pending string
			for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
				var first, to int64
				if _, err := fmt.Sscanf(lines.Text(), "got %d %d", &first, &to); err != nil {
					pending = strings.TrimPrefix(lines.Text(), "begin ")
					continue
				}
				if first != last+1 || to != first+2 {
					t.Fatalf("%d to %d after %d", first, to, last)
				}
				last = to
			}
			if last != 18 {
				t.Fatalf("six calls ended with %d", last)
			}
			s, err := openFile(path, sqlitefile.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for id, want := range map[string]int64{pending: last + 1} {
				for range 2 {
					if got, err := s.Next(context.Background(), childRequest(id)); err != nil || got.First != want {
						t.Errorf("the call repeated got %v (%v), want %d", got, err, want)
					}
				}
			}
			got, err := s.Next(context.Background(), childRequest(""))
			if err != nil || got.First != last+4 {
				t.Errorf("the next call got %v (%v), want %d", got, err, last+4)
			}
		})
	}
}
