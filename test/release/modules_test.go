// Package release rehearses what users of Go do after a release: with both modules of this
// tree, tagged and served by a module proxy of files.
package release

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	daemonModule = "github.com/kazahana/kazahana"
	clientModule = "github.com/kazahana/kazahana/clients/go"
	version      = "v0.1.0"
)

// runIn runs a program that must succeed, and returns its output.
func runIn(t *testing.T, dir string, env []string, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, errs.Bytes())
	}
	return string(out)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}

// published makes a repository of this tree with the tags of a release, downloads its
// modules as a proxy would, and returns the environment of a user of that proxy.
func published(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	repository := filepath.Join(dir, "repository")
	runIn(t, "../..", nil, "git", "init", "-q", repository)
	files := runIn(t, "../..", nil, "git", "ls-files", "-z", "-c", "-o", "--exclude-standard")
	for _, name := range strings.Split(strings.TrimRight(files, "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			continue // removed, and not committed yet
		}
		write(t, filepath.Join(repository, name), string(text))
	}
	git := []string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"}
	runIn(t, repository, nil, "git", "add", "-A")
	runIn(t, repository, nil, "git", append(git, "commit", "-q", "-m", "release")...)
	// The tags of docs/packages.md.
	runIn(t, repository, nil, "git", "tag", version)
	runIn(t, repository, nil, "git", "tag", "clients/go/"+version)

	config := filepath.Join(dir, "gitconfig")
	write(t, config, "[url \"file://"+repository+"\"]\n\tinsteadOf = https://"+daemonModule+"\n[protocol \"file\"]\n\tallow = always\n")
	cache := filepath.Join(dir, "fetched")
	fetch := []string{"GOMODCACHE=" + cache, "GIT_CONFIG_GLOBAL=" + config, "GONOPROXY=" + daemonModule, "GONOSUMDB=" + daemonModule, "GOWORK=off", "GOFLAGS=-modcacherw"}
	for _, module := range []string{daemonModule, clientModule} {
		runIn(t, dir, fetch, "go", "mod", "download", module+"@"+version)
	}
	return []string{
		"GOPROXY=file://" + filepath.Join(cache, "cache", "download") + "," + strings.TrimSpace(runIn(t, dir, nil, "go", "env", "GOPROXY")),
		"GONOSUMDB=" + daemonModule, "GONOPROXY=none", "GIT_CONFIG_GLOBAL=/dev/null", "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw",
		"GOMODCACHE=" + filepath.Join(dir, "modules"), "CGO_ENABLED=0",
	}
}

// selected are the versions of a module's build list, and its version of Go.
func selected(t *testing.T, dir string, env []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(runIn(t, dir, env, "go", "list", "-m", "-json", "all"))); d.More(); {
		var m struct {
			Path, Version, GoVersion string
			Main                     bool
		}
		must.Succeed(t, d.Decode(&m))
		if all[m.Path] = m.Version; m.Main {
			all["go"] = m.GoVersion
		}
	}
	return all
}

const program = `package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/kazahanatest"
	"github.com/kazahana/kazahana/clients/go/placement"
)

func main() {
	fmt.Println(grpc.Version, redis.Version())
	client := kazahanatest.New().Client(kazahana.WithService("orders"))
	defer client.Close()
	id, err := client.NextID(context.Background())
	fmt.Println(id, err, placement.New(client) != nil)
}
`

// TestModules: the command can be installed from a proxy, and the client changes no version of
// its user's; these are older than the daemon's.
func TestModules(t *testing.T) {
	ring.Deep(t)
	env := published(t)

	t.Run("the command", func(t *testing.T) {
		bin := t.TempDir()
		runIn(t, bin, append(env, "GOBIN="+bin), "go", "install", "-trimpath", daemonModule+"/cmd/kazahanad@latest")
		if said := runIn(t, bin, nil, filepath.Join(bin, "kazahanad"), "version"); !strings.Contains(said, "kazahanad") {
			t.Errorf("kazahanad version says %q", said)
		}
	})

	t.Run("the client", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "go.mod"), "module user\n\ngo 1.22\n\nrequire (\n\tgithub.com/redis/go-redis/v9 v9.7.0\n\tgoogle.golang.org/grpc v1.70.0\n)\n")
		before := selected(t, dir, env)
		runIn(t, dir, env, "go", "get", clientModule+"@latest")
		write(t, filepath.Join(dir, "main.go"), program)
		after := selected(t, dir, env)
		before[clientModule] = version
		if !maps.Equal(before, after) {
			t.Errorf("the client changes versions:\nbefore %v\nafter  %v", before, after)
		}
		if before["google.golang.org/grpc"] != "v1.70.0" || before["github.com/redis/go-redis/v9"] != "v9.7.0" || before["go"] != "1.22" {
			t.Errorf("the user has %v", before)
		}
		if said := runIn(t, dir, env, "go", "run", "."); said != "1.70.0 9.7.0\n137465797017600256 <nil> true\n" {
			t.Errorf("the user's program says %q", said)
		}
		if graph := runIn(t, dir, env, "go", "mod", "graph"); strings.Contains(graph, daemonModule+"@") {
			t.Errorf("the daemon's module is in the graph:\n%s", graph)
		}
		t.Logf("versions of %d modules stay: %v", len(before)-2, slices.Sorted(maps.Keys(before))[:5])
	})
}
