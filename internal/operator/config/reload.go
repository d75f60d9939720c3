package config

import (
	"reflect"
	"slices"
)

// live are the keys that a running process changes at SIGHUP. All others need a restart.
// The lease server also reads the files of its credentials again.
var live = []string{"allow_uids", "allow_gids", "log_level"}

// Reload is the effect of a reload on a running process.
type Reload struct {
	Changed []string // keys that changed and apply now
	Restart []string // keys that changed and apply after a restart
}

// Reload compares the settings with next, and returns the settings that apply from now on:
// next's for the keys that a running daemon can change, its own for the others.
func (s *Serve) Reload(next *Serve) (*Serve, Reload) {
	merged := *s
	return &merged, takeOver(&merged, next)
}

// Reload is Serve.Reload for the lease server.
func (s *LeaseServer) Reload(next *LeaseServer) (*LeaseServer, Reload) {
	merged := *s
	return &merged, takeOver(&merged, next)
}

// takeOver compares settings key by key, and copies live ones from next.
func takeOver[T any](settings, next *T) (r Reload) {
	after := flagsOf(next)
	for i, f := range flagsOf(settings) {
		now, key := after[i].field, f.key()
		switch {
		case key == "config" || reflect.DeepEqual(withoutPlaces(f.field), withoutPlaces(now)):
		case slices.Contains(live, key):
			f.field.Set(now)
			r.Changed = append(r.Changed, key)
		default:
			r.Restart = append(r.Restart, key)
		}
	}
	slices.Sort(r.Changed)
	slices.Sort(r.Restart)
	return r
}

// withoutPlaces returns the value of a key, without its lines in the file.
func withoutPlaces(setting reflect.Value) any {
	texts := map[string]string{}
	switch services := setting.Interface().(type) {
	case Overrides:
		for service, entry := range services {
			texts["services."+service] = ""
			for _, v := range entry.members {
				texts[v.key] = v.text
			}
		}
	case ServiceTerms:
		for service, terms := range services {
			texts[service] = terms.Params.Encode()
		}
	default:
		return services
	}
	return texts
}
