package config

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// With any file, Load neither panics nor reports more than one line, and an accepted one keeps
// the promises that the rest of the daemon builds on.
func FuzzYAML(f *testing.F) {
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sample)
	f.Add(disabledSetting.ReplaceAll(sample, []byte("$1")))
	for _, name := range slices.Sorted(maps.Keys(precedenceCases)) {
		for _, text := range precedenceCases[name] {
			f.Add([]byte(name + ": " + text + "\n"))
		}
	}
	for _, seed := range []string{
		"", "---", "...", "{", "a: &a\n  b: *a\n", "<<: {a: b}\n", "? [a]\n: b\n", "services: {a: &x {bit_ts: 41}, b: *x}\n",
		"provider: redis://u:p@h/0?password=x\n", "allow_uids: &a [*a]\n", "\xff\xfe\x00", "%YAML 1.1\n---\na: b\n",
		"socket: !!binary aGk=\n", "socket: !x y\n", "a: b\na: c\n", "- a\n", "socket: |\n  /x\n", "meta: {a: \"\\0\"}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		read := func(string, string, bool) ([]byte, bool, error) { return data, true, nil }
		var s Serve
		if err := s.Load(&s, nil, Process{Now: testNow, readFile: read}); err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		if s.Provider == "" || s.Socket == "" || s.SocketMode&0o200 == 0 || s.MaxConnections < 1 || s.MaxInFlight < 1 {
			t.Errorf("accepted %+v", s)
		}
		if _, ok := s.Services()[s.DefaultService]; !ok {
			t.Errorf("no default service among %v", s.Services())
		}
		for name, service := range s.Services() {
			if !serviceName.MatchString(name) || service.MaxThroughputPerMS < 1 || service.StartupWait < 0 ||
				service.AcquireRetryInterval > service.AcquireRetryMaxInterval || service.BitTS < 32 || service.BitTS > 52 {
				t.Errorf("accepted service %q: %+v", name, service)
			}
		}
	})
}
