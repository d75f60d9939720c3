package kazahana_test

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

func example(ctx context.Context, client *kazahana.Client, db *sql.DB, id kazahana.ID, day time.Time, secret string,
	parts []string, store func(string, int64) error, err error) error {
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
	// The files seem to be inside the module, where internal packages resolve.
	dir := t.TempDir()
	files := map[string]string{}
	for i, block := range blocks {
		text := block[1]
		for _, names := range unused.FindAllStringSubmatch(text, -1) {
			text += "_ = []any{" + names[1] + "}\n"
		}
		file := filepath.Join(dir, fmt.Sprint(i, ".go"))
		if err := os.WriteFile(file, []byte(strings.Replace(program, "%s", text, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		seeming, err := filepath.Abs(fmt.Sprintf("testdata/readme%d/main.go", i))
		if err != nil {
			t.Fatal(err)
		}
		files[seeming] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, block := range blocks {
		out, err := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), fmt.Sprintf("./testdata/readme%d", i)).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s\n%s", err, out, block[1])
		}
	}
}
