package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// recipe is the first block of a language of a page in docs/recipes.
func recipe(t *testing.T, name, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/recipes/" + name + ".md")
	must.Succeed(t, err)
	return program(t, string(page), language)
}

func TestRecipePHP(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	php := ring.Program(t, "php")
	program := strings.Replace(recipe(t, "php", "php"), "/run/kazahana/kazahanad.sock", s.Socket, 1)
	program = strings.Replace(program, `echo next_id(), "\n";`, `for ($i = 0; $i < 20; $i++) echo next_id(), "\n";`, 1)
	file := s.Path("id.php")
	testkit.WriteFile(t, file, program)
	if out, err := exec.Command(php, file).Output(); err == nil {
		t.Errorf("without a daemon it prints %s", out)
	}
	for _, layout := range []string{"default", "js"} {
		i := s.Start("--layout", layout, "--state-dir", s.Path(layout))
		out, err := exec.Command(php, file).CombinedOutput()
		ids := strings.Fields(string(out))
		if err != nil || len(ids) != 20 {
			t.Fatalf("%v: %s", err, out)
		}
		last := int64(0)
		for _, text := range ids {
			id, err := strconv.ParseInt(text, 10, 64)
			if err != nil || id <= last || (layout == "js") != (id < 1<<53) {
				t.Errorf("%s: %s after %d", layout, text, last)
			}
			last = id
		}
		i.Terminate()
	}
}

// Seed 003-8.2-2.
func TestRecipeDailyNumbers(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	file := s.Path("daily.yaml")
	testkit.WriteFile(t, file, recipe(t, "daily-numbers", "yaml"))
	s.Start("--config", file)
	for _, c := range []struct{ key, want string }{
		{"orders-2026-11-22", "1\n"}, {"orders-2026-11-22", "2\n"}, {"orders-2026-11-23", "1\n"}, {"orders-2026-11-22", "3\n"},
	} {
		if got := s.Kazahanad("seq", c.key).OK(t); got != c.want {
			t.Errorf("%s: %s, want %s", c.key, got, c.want)
		}
	}
}

func TestRecipeFencing(t *testing.T) {
	sqlite := ring.Program(t, "sqlite3")
	for token, want := range map[int]string{6: "1", 7: "1", 8: "0"} {
		sql := fmt.Sprintf("CREATE TABLE notes (key TEXT, text TEXT, token INTEGER); INSERT INTO notes VALUES ('a', 'first', %d);", token)
		out, err := exec.Command(sqlite, ":memory:", sql+recipe(t, "fencing", "sql")+"SELECT changes();").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("over token %d: %v, %s rows, want %s", token, err, out, want)
		}
	}
}
