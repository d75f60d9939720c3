package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The licences are the linked modules', each text once. A module without one is an error, and not
// left out.
func TestTexts(t *testing.T) {
	const licence = "Permission is hereby granted"
	var all []module
	for _, name := range []string{"a", "b"} {
		dir := filepath.Join(t.TempDir(), name)
		must.Succeed(t, os.Mkdir(dir, 0o700))
		must.Succeed(t, os.WriteFile(filepath.Join(dir, "LICENSE"), []byte(licence+"\n"), 0o600))
		all = append(all, module{name, "v1", dir})
	}
	text, err := texts(all)
	must.Succeed(t, err)
	if strings.Count(text, licence) != 1 || !strings.Contains(text, "a: LICENSE\nb: LICENSE\n") || !strings.Contains(text, "  b v1\n") {
		t.Errorf("it is\n%s", text)
	}
	if _, err := texts(append(all, module{"closed", "v2", t.TempDir()})); err == nil || !strings.Contains(err.Error(), "closed@v2 has no licence") {
		t.Errorf("the error is %v", err)
	}
}
