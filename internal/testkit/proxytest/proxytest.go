// Package proxytest starts private proxies for tests, on free ports of loopback, that end with the
// test: a real nginx, a real Apache httpd, and a Proxy of bytes that makes the faults of a network.
package proxytest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Nginx starts an nginx with one server, which has the settings, and returns its URL.
func Nginx(tb testing.TB, settings string) string {
	tb.Helper()
	ring.All(tb)
	const all = `daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/log warn;
events { worker_connections 512; }
http {
	access_log off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	server {
		listen 127.0.0.1:%[2]d;
		%[3]s
	}
}
`
	return start(tb, "nginx", func(dir, config string, port int) (text string, args []string) {
		return fmt.Sprintf(all, dir, port, settings), []string{"-p", dir, "-e", dir + "/log", "-c", config}
	})
}

// Apache starts an Apache httpd with the settings, and returns its URL.
func Apache(tb testing.TB, settings string) string {
	tb.Helper()
	ring.All(tb)
	const modules = "/usr/lib/apache2/modules"
	const all = `ServerName localhost
ServerRoot %[1]s
DefaultRuntimeDir %[1]s
PidFile %[1]s/pid
ErrorLog %[1]s/log
Mutex pthread
Listen 127.0.0.1:%[2]d
LoadModule mpm_event_module %[4]s/mod_mpm_event.so
LoadModule authz_core_module %[4]s/mod_authz_core.so
LoadModule proxy_module %[4]s/mod_proxy.so
LoadModule proxy_http_module %[4]s/mod_proxy_http.so
LoadModule rewrite_module %[4]s/mod_rewrite.so
DocumentRoot %[1]s
%[3]s
`
	return start(tb, "apache2", func(dir, config string, port int) (text string, args []string) {
		return fmt.Sprintf(all, dir, port, settings, modules), []string{"-X", "-f", config}
	})
}

// start runs a proxy until the test ends, and returns when it listens.
func start(tb testing.TB, name string, configure func(dir, config string, port int) (text string, args []string)) string {
	tb.Helper()
	dir, err := ring.MemoryDir("kz-proxy-")
	must.Succeed(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.Succeed(tb, os.Chmod(dir, 0o755))
	port := ring.FreePort(tb)
	config := filepath.Join(dir, "config")
	text, args := configure(dir, config, port)
	must.Succeed(tb, os.WriteFile(config, []byte(text), 0o644))
	cmd := exec.Command(program(tb, name), args...)
	output := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = output, output
	// httpd does not answer as root, and a process that changes its user by itself would outlive tests
	// that are killed.
	account := ring.Account(tb, "www-data")
	if account != nil {
		must.Succeed(tb, os.Chown(dir, int(account.Uid), int(account.Gid)))
	}
	cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, account)
	must.Succeed(tb, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	said := func() string {
		log, _ := os.ReadFile(dir + "/log")
		return output.String() + string(log)
	}
	tb.Cleanup(sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-ended
		if tb.Failed() {
			tb.Logf("%s says:\n%s", name, said())
		}
	}))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	await.Success(tb, name+" listens", func() error {
		select {
		case <-ended:
			tb.Fatalf("%s has ended: %s", name, said())
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return "http://" + address
}

// program is where the program is: Debian keeps it out of the path of users.
func program(tb testing.TB, name string) string {
	tb.Helper()
	if path := "/usr/sbin/" + name; exec.Command(path, "-v").Run() == nil {
		return path
	}
	return ring.Program(tb, name)
}
