package config

import (
	"strings"
	"testing"
)

// A secret that stands where another value should is in no error, whichever key it is.
func TestErrorsHideSecrets(t *testing.T) {
	for _, settings := range []any{&Serve{}, &LeaseServer{}} {
		for _, f := range flagsOf(settings) {
			for _, where := range []string{"", "KAZAHANA_X"} {
				v := value{key: f.key(), name: f.key(), where: where, text: "redis://u:hunter2@h"}
				if err := f.decode(v); err != nil && strings.Contains(err.Error(), "hunter2") {
					t.Errorf("--%s: %v", f.name, err)
				}
			}
		}
	}
}
