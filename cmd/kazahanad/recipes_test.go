package main

import (
	"fmt"
	"os"
	"os/exec"
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

func TestRecipeDailyNumbers(t *testing.T) {
	t.Parallel()
	s := testkit.NewSite(t)
	file := s.Path("daily.yaml")
	testkit.WriteFile(t, file, recipe(t, "daily-numbers", "yaml"))
	s.Start("--config", file)
	for _, c := range []struct{ key, want string }{
		{"orders-2026-11-22", "1\n"}, {"orders-2026-11-22", "2\n"}, {"orders-2026-11-23", "1\n"}, {"orders-2026-11-22", "3\n"},
	} {
		if got := s.Kazahanad("seq", c.key).OK(t); got != c.want { // seed 003-8.2-2
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
