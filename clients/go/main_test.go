package kazahana

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/wire"
)

// executable is the daemon: the one that KAZAHANAD names, or one that the first call
// builds in builtIn.
var executable = sync.OnceValue(func() string {
	if path := os.Getenv("KAZAHANAD"); path != "" {
		return path
	}
	path := filepath.Join(builtIn, "kazahanad")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/kazahanad").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("the daemon does not build: %s", out))
	}
	return path
})

var builtIn string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "kz-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		builtIn = dir
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			os.Stderr.WriteString(err.Error())
			return 1
		}
		return code
	}())
}

const patience = await.Patience

// daemon is a kazahanad of one test, which can be killed and started again.
type daemon struct {
	t      testing.TB
	dir    string
	socket string
	args   []string
	cmd    *exec.Cmd
	log    bytes.Buffer
}

func newDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	ring.All(t)
	dir, err := os.MkdirTemp("", "kz-") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, socket: filepath.Join(dir, "d.sock"), args: args}
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.log.Bytes())
		}
		_ = os.RemoveAll(dir)
	})
	d.start()
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	args := append([]string{
		"serve", "--config", "none", "--socket", d.socket, "--state-dir", filepath.Join(d.dir, "state"), "--startup-wait", "30s",
	}, d.args...)
	d.cmd = exec.Command(executable(), args...)
	d.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir}
	d.cmd.Stderr = &d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

// kill ends the daemon without a word.
func (d *daemon) kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		d.cmd = nil
	}
}

// terminate lets the daemon drain.
func (d *daemon) terminate() {
	_ = d.cmd.Process.Signal(os.Interrupt)
	_ = d.cmd.Wait()
	d.cmd = nil
}

// client returns a Client of the daemon that is up.
func (d *daemon) client(opts ...Option) *Client {
	d.t.Helper()
	c := newClient(d.t, append([]Option{WithSocket(d.socket)}, opts...)...)
	for end := time.Now().Add(patience); ; {
		err := c.Ping(d.t.Context())
		if err == nil {
			return c
		}
		if !errors.Is(err, ErrDaemonUnavailable) || time.Now().After(end) {
			d.t.Fatal(err)
		}
	}
}

func newClient(t testing.TB, opts ...Option) *Client {
	t.Helper()
	c, err := New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// script is what a scripted server does with one connection after another.
type script func(conn net.Conn)

// scripted returns an option for a server whose n-th connection is the n-th
// script's; the last one serves all that follow.
func scripted(t *testing.T, scripts ...script) Option {
	var mu sync.Mutex
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // after the client is closed
	return WithDialer(func(context.Context) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		run := scripts[0]
		if len(scripts) > 1 {
			scripts = scripts[1:]
		}
		near, far := net.Pipe()
		running.Go(func() {
			defer far.Close()
			run(far)
		})
		return near, nil
	})
}

// answering serves requests, until answer says that the connection is over.
func answering(answer func(*wire.ServerConn, *wire.Request) bool) script {
	return func(conn net.Conn) {
		c := wire.NewServerConn(conn, conn)
		var r wire.Request
		for c.Read(&r) == nil && answer(c, &r) {
			if c.Flush() != nil {
				return
			}
		}
	}
}

// number answers every request with a number.
func number(n uint64) script {
	return answering(func(c *wire.ServerConn, r *wire.Request) bool {
		c.ReplyUint64(r.ID, n)
		return true
	})
}

// refuse answers every request with an error.
func refuse(e *wire.Error) script {
	return answering(func(c *wire.ServerConn, r *wire.Request) bool {
		c.ReplyError(r.ID, e)
		return true
	})
}
