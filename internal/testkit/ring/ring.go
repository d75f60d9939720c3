// Package ring says which tests run. The variable KZTEST_RING names the ring:
// without it, the fast ring, which needs no server and no program; "all" adds the
// tests on real servers and processes; "deep" adds tests that only time can judge.
package ring

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// variable names the ring. Its name does not begin with KAZAHANA_, because the daemon
// refuses a variable of that kind that it does not know.
const variable = "KZTEST_RING"

type level int

const (
	fast level = iota
	all
	deep
)

func current() (level, error) {
	switch text := os.Getenv(variable); text {
	case "", "fast":
		return fast, nil
	case "all":
		return all, nil
	case "deep":
		return deep, nil
	default:
		return fast, fmt.Errorf("%s is %q: want fast, all or deep", variable, text)
	}
}

func needs(t testing.TB, want level, name string) {
	t.Helper()
	have, err := current()
	if err != nil {
		t.Fatal(err)
	}
	if have < want {
		t.Skipf("runs with %s=%s", variable, name)
	}
}

// All skips the test in the fast ring.
func All(t testing.TB) {
	t.Helper()
	needs(t, all, "all")
}

// Deep skips the test outside the deep ring.
func Deep(t testing.TB) {
	t.Helper()
	needs(t, deep, "deep")
}

// WithoutRace skips the test under the race detector, for long runs in which one
// goroutine at a time works: the detector finds nothing there that shorter runs do not
// show, and takes ten times as long. `make test` runs them with the ring "all".
func WithoutRace(t testing.TB) {
	t.Helper()
	if Race {
		t.Skipf("runs with %s=all, without the race detector", variable)
	}
}

// IsDeep reports whether this is the deep ring, for a test that runs longer there.
func IsDeep(t testing.TB) bool {
	t.Helper()
	have, err := current()
	if err != nil {
		t.Fatal(err)
	}
	return have == deep
}

// FreePorts returns n ports without a listener at this moment. They are below the ports
// that systems choose for connections, which could take one before its server does, or
// while that is down.
func FreePorts(n int) (ports []int, err error) {
	for range 1000 * n {
		if len(ports) == n {
			return ports, nil
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err == nil {
			defer l.Close()
			ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		}
	}
	return nil, errors.New("no port is free")
}

// FreePort is one of FreePorts.
func FreePort(t testing.TB) int {
	t.Helper()
	ports, err := FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// MemoryDir makes a directory that need not survive anything. Its name is short: a socket's has
// 108 bytes at most.
func MemoryDir(pattern string) (string, error) {
	dir, err := os.MkdirTemp("/dev/shm", pattern)
	if err != nil {
		return os.MkdirTemp("", pattern)
	}
	return dir, nil
}

// Dir is MemoryDir until the test ends.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := MemoryDir("kz-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Program returns the path of a program that scripts/setup installs. A missing one
// skips the test in the fast ring, and fails it in the others.
func Program(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if path := unpacked(t, name); path != "" {
		return path
	}
	All(t)
	t.Fatalf("%s is missing: scripts/setup installs it", name)
	return ""
}

// unpacked is where scripts/setup leaves the programs of a package that it does not
// install, or "".
func unpacked(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		path := filepath.Join(dir, ".tools", "prometheus", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// Account is the user of a program that refuses to run as root; nil where the tests do not run as root.
func Account(t testing.TB, name string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	account, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.ParseUint(account.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(account.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
