package config

import (
	"reflect"
	"strings"
	"testing"
)

// A secret that stands where another value should is in no error, whichever key it is.
func TestErrorsHideSecrets(t *testing.T) {
	for _, settings := range []any{&Serve{}, &LeaseServer{}} {
		for _, flag := range modelOf(settings).Model.Flags {
			for _, where := range []string{"", "KAZAHANA_X"} {
				v := value{key: keyOf(flag), name: keyOf(flag), where: where, text: "redis://u:hunter2@h"}
				if err := decode(flag, v, reflect.New(flag.Target.Type()).Elem()); err != nil && strings.Contains(err.Error(), "hunter2") {
					t.Errorf("--%s: %v", flag.Name, err)
				}
			}
		}
	}
}
