package testkit

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Clients installs the client in Python and builds those in Node and Java, as their own
// tests do. It returns the Python interpreter and the directory of Java's classes. root is
// the repository.
func Clients(t *testing.T, root string) (python, classes string) {
	t.Helper()
	for _, program := range []string{"python3", "node", "npm", "java", "mvn"} {
		ring.Program(t, program)
	}
	Output(t, filepath.Join(root, "clients/node/scripts/test"), "build")
	classes = Output(t, filepath.Join(root, "clients/java/scripts/test"), "build")
	return Output(t, filepath.Join(root, "clients/python/scripts/test"), "interpreter"), classes
}

// Output runs a program that has to succeed, and returns the last line of its standard
// output. What goes to standard error is for people: Maven ends that with an escape
// sequence and no newline.
func Output(t *testing.T, program string, args ...string) string {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", program, args, err, out, said.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
