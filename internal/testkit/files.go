package testkit

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func DecodeJSON(t *testing.T, text string, target any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), target); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func WriteFile(t *testing.T, path, content string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
}

func Rename(t *testing.T, from, to string) {
	t.Helper()
	must.Succeed(t, os.Rename(from, to))
}

func Mkdir(t *testing.T, path string) {
	t.Helper()
	must.Succeed(t, os.Mkdir(path, 0o700))
}
