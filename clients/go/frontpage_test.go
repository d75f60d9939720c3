//go:build go1.25

package kazahana

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wrapper is what stands around the Go example of the repository's README.
const wrapper = `package main

import (
	"context"
	"fmt"
	"log"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
%s
	return nil
}
`

// The programs of the repository's README print an ID. Those of the other
// languages are run where their clients' own tests have made what they need.
func TestFrontPagePrograms(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```(go|python|js)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(examples) != 4 {
		t.Errorf("%d examples found, not 4", len(examples))
	}
	d := newDaemon(t)
	c := d.client()
	for _, m := range examples {
		t.Run(m[1], func(t *testing.T) {
			text := strings.ReplaceAll(m[2], "/run/kazahana/kazahanad.sock", d.Socket)
			cmd := map[string]func(*testing.T, string) *exec.Cmd{"go": goProgram, "python": pythonProgram, "js": nodeProgram}[m[1]](t, text)
			cmd.Env = append(cmd.Environ(), "KAZAHANA_SOCKET="+d.Socket)
			before := nextID(t, c)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			after := nextID(t, c)
			id, err := ParseID(regexp.MustCompile(`\d{15,}`).FindString(string(out)))
			if err != nil || id <= before || id >= after {
				t.Errorf("%d is not between %d and %d: %v\n%s", id, before, after, err, out)
			}
		})
	}
}

func goProgram(t *testing.T, text string) *exec.Cmd {
	cmd := exec.Command("go", "run", "./readme0")
	cmd.Dir = userModule(t, strings.Replace(wrapper, "%s", text, 1))
	return cmd
}

func pythonProgram(t *testing.T, text string) *exec.Cmd {
	const made = "../../.tools/python-client/venv-*/requirements" // written when all is there
	found, err := filepath.Glob(made)
	if err != nil || len(found) == 0 {
		t.Skipf("there is no %s: clients/python/scripts/test makes it", made)
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(found[0]), "bin", "python"), "-c", text)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../python/src", "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

func nodeProgram(t *testing.T, text string) *exec.Cmd {
	if _, err := os.Stat("../node/node_modules/.built"); err != nil { // written when all is there
		t.Skipf("%v: clients/node/scripts/test makes it", err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	packageDir, err := filepath.Abs("../node")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "node_modules"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(packageDir, filepath.Join(dir, "node_modules", "kazahana")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "example.mjs")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(node, file)
}
