package main

import (
	"os"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The packaged configurations are what the structs say.
func TestSamples(t *testing.T) {
	for file, keys := range samples {
		want, err := sample(".", file, keys)
		must.Succeed(t, err)
		got, err := os.ReadFile("../" + file)
		must.Succeed(t, err)
		if string(got) != want {
			t.Errorf("packaging/%s is not what go run ./packaging/sample writes", file)
		}
	}
}
