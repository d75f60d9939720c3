package memlimit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// asked makes the test's own program print the limit, and end.
const asked = "MEMLIMIT_TEST_PRINTS"

func TestMain(m *testing.M) {
	if os.Getenv(asked) != "" {
		fmt.Print(Of(os.DirFS("/")))
		return
	}
	os.Exit(m.Run())
}

// A process in a real control group of this system finds its limit.
func TestOfARealGroup(t *testing.T) {
	for version, group := range map[string]struct{ controllers, mount, limit string }{
		"1": {"", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		"2": {"/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup", "memory.max"},
	} {
		t.Run("version "+version, func(t *testing.T) {
			const want = 192 << 20
			if group.controllers != "" {
				if text, err := os.ReadFile(group.controllers); err != nil || !strings.Contains(string(text), "memory") {
					t.Skipf("no hierarchy of version 2 has the memory here: %q, %v", text, err)
				}
			}
			dir := filepath.Join(group.mount, fmt.Sprintf("kazahana-memlimit-%d", os.Getpid()))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Skipf("control groups of version %s cannot be made here: %v", version, err)
			}
			t.Cleanup(func() { _ = os.Remove(dir) })
			limit, err := os.OpenFile(filepath.Join(dir, group.limit), os.O_WRONLY, 0)
			if err != nil {
				t.Skipf("a new group has no limit of memory: %v", err)
			}
			defer limit.Close()
			if _, err := limit.WriteString(strconv.Itoa(want)); err != nil {
				t.Fatal(err)
			}
			self := exec.Command("/bin/sh", "-c", `echo $$ > "$0" && exec "$1"`, filepath.Join(dir, "cgroup.procs"), os.Args[0])
			self.Env = append(os.Environ(), asked+"=1")
			said, err := self.CombinedOutput()
			if err != nil || string(said) != strconv.Itoa(want) {
				t.Errorf("%q, %v, want %d", said, err, want)
			}
		})
	}
}
