package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	// restoreTerm is the term of the one lease: long enough for a daemon to start
	// within it, short enough to wait for its end. The quarantine outlasts the test.
	restoreTerm = 4 * time.Second
	// restoreAsking is how long a daemon is asked at a time.
	restoreAsking = 250 * time.Millisecond
	// inodeTries is how often a restore is repeated until the file system gives a
	// file the inode that the original had.
	inodeTries = 100
)

// restoreWorld is one try of a row: a lease server that is elsewhere, and daemons
// on a disk of their own that share a live directory.
type restoreWorld struct {
	*testkit.Site // of the lease server
	disk          *disktest.Disk
	home          string // a directory on the disk
	live          string // the live directory
	server        *testkit.LeaseServer
	a, b          *issuer
	tries         int // restores until the state file had an inode of before

	// The copy: A's state directory, and its folder in the live directory.
	stateCopy, folder, folderCopy string
	inodes                        map[uint64]bool // of the files in the state directory

	mu    sync.Mutex
	lives []restoreLife
}

// newRestoreWorld starts the lease server. Its machine IDs are as many as ids says.
func newRestoreWorld(t *testing.T, disk *disktest.Disk, name string, ids int, term time.Duration) *restoreWorld {
	t.Helper()
	w := &restoreWorld{Site: testkit.NewSite(t), disk: disk, home: filepath.Join(disk.Dir(), name), live: disktest.Memory(t)}
	testkit.Mkdir(t, w.home)
	w.server = w.StartLeaseServer("127.0.0.1:0", "--live-dir", w.live, "--provider",
		fmt.Sprintf("sqlite:%s?ids=0-%d&term=%v&quarantine=10m", w.Leases(), ids-1, term))
	w.a, w.b = w.issuer("A", filepath.Join(w.home, "a")), w.issuer("B", w.Path("b"))
	return w
}

// issuer is a daemon of the world.
type issuer struct {
	*testkit.Site
	world   *restoreWorld
	name    string
	live    string // its live directory
	d       *testkit.Shifted
	logs    []*testkit.Log // of its lives
	refused bool           // a start was
}

func (w *restoreWorld) issuer(name, state string) *issuer {
	s := testkit.NewSite(w.T)
	s.State = state
	return &issuer{Site: s, world: w, name: name, live: w.live}
}

// run starts a life on a clock that is off by shift. Where the daemon refuses the state file, run does what the error says.
func (i *issuer) run(shift time.Duration) {
	i.T.Helper()
	for {
		i.d = i.LaunchShifted(shift, "--provider", i.world.server.URL(), "--live-dir", i.live, "--startup-wait", "0",
			"--sequence-start", "zero", "--provider-timeout", "1s", "--max-backward", "0", "--max-forward", "1h",
			"--acquire-retry-interval", "50ms", "--acquire-retry-max-interval", "200ms")
		i.T.Cleanup(i.world.disk.Thaw)
		i.logs = append(i.logs, i.d.Log)
		if i.answers() {
			return
		}
		const remedy = "move it away"
		file, said := i.stateFile(), i.d.Log.String()
		if !strings.Contains(said, file) || !strings.Contains(said, remedy) {
			i.T.Fatalf("%s does not start: %s", i.name, said)
		}
		i.refused = true
		testkit.Rename(i.T, file, fmt.Sprint(file, ".refused-", len(i.logs)))
	}
}

// answers waits until the daemon has its socket or has ended.
func (i *issuer) answers() bool {
	i.T.Helper()
	up := false
	await.Eventually(i.T, i.name+" has begun to serve, or refused", func() bool {
		select {
		case <-i.d.Ended:
			return true
		default:
		}
		up = strings.Contains(i.d.Log.String(), "kazahanad is ready")
		return up
	})
	if up {
		i.d.AwaitReady()
	}
	return up
}

// asked asks the daemons at the same time, and puts what they answer on record.
func (w *restoreWorld) asked(issuers ...*issuer) {
	w.T.Helper()
	w.askedFor(restoreAsking, issuers...)
}

func (w *restoreWorld) askedFor(d time.Duration, issuers ...*issuer) {
	w.T.Helper()
	var all sync.WaitGroup
	for _, i := range issuers {
		all.Go(func() {
			ids, err := askForRestore(i.Socket, d)
			if err != nil {
				w.T.Errorf("asking %s: %v", i.name, err)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lives = append(w.lives, restoreLife{fmt.Sprintf("%s in life %d", i.name, len(i.logs)), ids})
		})
	}
	all.Wait()
}

// awaitMode waits until the daemon's IDs are of that kind.
func (i *issuer) awaitMode(modes ...string) {
	i.T.Helper()
	i.Dial().AwaitMode(modes...)
}

// take copies what A has, while it runs.
func (w *restoreWorld) take() {
	w.T.Helper()
	copies := disktest.Memory(w.T)
	w.folder = w.a.Dial().Status().LiveDir
	w.inodes = map[uint64]bool{}
	files, err := filepath.Glob(w.a.State + "/*")
	must.Succeed(w.T, err)
	for _, file := range files {
		w.inodes[inodeOf(file)] = true
	}
	w.stateCopy, w.folderCopy = w.a.State+".copy", filepath.Join(copies, "copy")
	must.Succeed(w.T, runScript(`cp -a "$1" "$2"; cp -a "$3" "$4"`, w.a.State, w.stateCopy, w.folder, w.folderCopy))
}

func (i *issuer) stateFile() string { return filepath.Join(i.State, "state") }

// runScript runs a script with the arguments as $1 and so on.
func runScript(script string, args ...string) error {
	cmd := exec.Command("sh", append([]string{"-eu", "-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// inodeOf is 0 where there is no such file.
func inodeOf(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// concluded is what the lives of A after the first logged about its state, in short.
func (i *issuer) concluded() (all []string) {
	if i.refused {
		all = append(all, "start refused: state file damaged")
	}
	for n, log := range i.logs {
		if n == 0 {
			continue
		}
		for text := range strings.Lines(log.String()) {
			line := map[string]any{}
			_ = json.Unmarshal([]byte(text), &line) // an error that ends the process is no JSON
			msg, _ := line["msg"].(string)
			because, _ := line["because"].(string)
			if err, _ := line["error"].(string); because == "" {
				because = err
			}
			for text, short := range map[string]string{
				"lease adopted from an earlier run":           "adopted",
				"leases of an earlier run are not adopted":    "refused: " + because,
				"the live state is damaged":                   "damaged",
				"this state directory is a copy":              "new identity: a copy",
				"the live state cannot be written":            "said: not written",
				"there is no live state of an earlier run":    "no live state",
				"lease lost: the provider no longer knows it": "verify: not ours",
			} {
				if strings.HasPrefix(msg, text) && !slices.Contains(all, short) {
					all = append(all, short)
				}
			}
		}
	}
	return all
}

// inBackground runs f, which may wait for a frozen disk, and returns how to wait
// for it.
func inBackground(f func() error) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error {
		select {
		case err := <-done:
			return err
		case <-time.After(await.Patience):
			return errors.New("it does not end")
		}
	}
}

// result is what the row counts of this try.
func (w *restoreWorld) result() restoreResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	return checkRestore(w.lives)
}
