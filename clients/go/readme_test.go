package kazahana

import (
	"encoding/json"
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
	"errors"
	"fmt"
	"log"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/kazahanatest"
)

var (
	_ = errors.Is
	_ = fmt.Sprint
	_ = log.Print
	_ = time.Now
	_ = kazahanatest.New
	_ context.Context
	_ *sql.DB
)

type roomSet interface {
	Open(a *kazahana.Activation) error
	Close(a *kazahana.Activation) ([]byte, error)
	Drop(a *kazahana.Activation)
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

// The README's examples compile.
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
	overlay := seeming(t, texts...)
	for i, block := range blocks {
		out, err := exec.Command("go", "build", "-overlay", overlay, fmt.Sprintf("./testdata/readme%d", i)).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s\n%s", err, out, block[1])
		}
	}
}

// seeming makes files that seem to be inside the module, where internal packages
// resolve: the i-th is all of ./testdata/readme<i>. It returns the overlay for the
// go command.
func seeming(t *testing.T, texts ...string) (overlay string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{}
	for i, text := range texts {
		file := filepath.Join(dir, fmt.Sprint(i, ".go"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		seems, err := filepath.Abs(fmt.Sprintf("testdata/readme%d/main.go", i))
		if err != nil {
			t.Fatal(err)
		}
		files[seems] = file
	}
	overlay = filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}
