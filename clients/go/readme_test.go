//go:build go1.25

package kazahana

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// program is what stands around an example of the README: all that its lines
// use and do not make.
const program = `package example

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/kazahanatest"
	"github.com/kazahana/kazahana/clients/go/placement"
)

var (
	_ = errors.Is
	_ = fmt.Sprint
	_ = http.HandleFunc
	_ = json.NewEncoder
	_ = log.Print
	_ = time.Now
	_ = kazahanatest.New
	_ = placement.New
	_ context.Context
	_ *sql.DB
)

type roomSet interface {
	Open(a *placement.Activation) error
	Close(a *placement.Activation) ([]byte, error)
	Drop(a *placement.Activation)
}

func example(ctx context.Context, client *kazahana.Client, db *sql.DB, id kazahana.ID, day time.Time, secret string,
	parts []string, store func(string, int64) error, rooms roomSet, forward func(authority string) error, err error) error {
	{
%s
	}
	return err
}
`

// unused marks the variables that an example makes for its reader.
var unused = regexp.MustCompile(`(?m)^(\w+(?:, \w+)*) := `)

// The README's examples compile, and go vet has nothing against them: the vet of the release of
// Go that README_TOOLCHAIN names, if it does.
func TestREADMECompiles(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 7 {
		t.Fatalf("only %d examples found", len(blocks))
	}
	var texts []string
	for _, block := range blocks {
		text := block[1]
		for _, names := range unused.FindAllStringSubmatch(text, -1) {
			text += "_ = []any{" + names[1] + "}\n"
		}
		texts = append(texts, strings.Replace(program, "%s", text, 1))
	}
	cmd := exec.Command("go", "vet", "./...")
	cmd.Dir = userModule(t, texts...)
	if toolchain := os.Getenv("README_TOOLCHAIN"); toolchain != "" {
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+toolchain)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// userModule makes a module of a user, with the oldest version of Go that the client
// supports, and returns its directory. The i-th text is all of its package readme<i>.
func userModule(t *testing.T, texts ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	ours, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	const path = "github.com/kazahana/kazahana/clients/go"
	files := map[string]string{"go.mod": strings.Replace(string(ours), "module "+path, "module user", 1) +
		"require " + path + " v0.0.0\nreplace " + path + " => " + here + "\n"}
	for i, text := range texts {
		files[fmt.Sprintf("readme%d/main.go", i)] = text
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The page is for the first day: it is short, and begins with what everybody needs.
func TestREADMEIsShort(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if words := len(strings.Fields(string(page))); words > 1000 {
		t.Errorf("%d words, and 1000 are the most", words)
	}
	at := 0
	for _, first := range []string{"go get ", "client.NextID(ctx)", "http.HandleFunc(", "kazahanatest.New()", "synctest", "errors.As("} {
		next := strings.Index(string(page)[at:], first)
		if next < 0 {
			t.Fatalf("%q is missing, or stands too early", first)
		}
		at += next
	}
}

// Links of the README lead somewhere wherever the page is shown.
func TestREADMELinks(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(string(page), -1)
	if len(links) < 3 {
		t.Errorf("only %d links found", len(links))
	}
	for _, link := range links {
		file, ours := strings.CutPrefix(link[1], "https://github.com/kazahana/kazahana")
		file = strings.TrimPrefix(file, "/blob/main/")
		if _, err := os.Stat(filepath.Join("../..", file)); !ours || err != nil {
			t.Errorf("the link %s is relative, or leads nowhere: %v", link[1], err)
		}
	}
}
