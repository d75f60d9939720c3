package config

import "testing"

func TestLayout(t *testing.T) {
	for name, c := range map[string]struct {
		src      sourceTexts
		bitTS    int
		provider string
	}{
		"with the default provider":  {sourceTexts{args: []string{"--layout", "js"}}, 52, "sqlite:/var/lib/kazahana/leases.db?layout=js"},
		"the provider's URL says it": {sourceTexts{file: "provider: redis://h/0?layout=js\n"}, 52, "redis://h/0?layout=js"},
		"bit_ts counts more":         {sourceTexts{file: "provider: redis://h/0?layout=js\nbit_ts: 42\n"}, 42, "redis://h/0?layout=js"},
		"both say it":                {sourceTexts{file: "provider: redis://h/0?layout=js\nlayout: js\n"}, 52, "redis://h/0?layout=js"},
		"a lease server has terms":   {sourceTexts{file: "provider: https://h\nlayout: js\n"}, 52, "https://h"},
		"one on a socket":            {sourceTexts{file: "provider: http+unix:/s\nlayout: js\n"}, 52, "http+unix:/s"},
		"no lease ever":              {sourceTexts{file: "provider: 'none:'\nlayout: js\n"}, 52, "none:"},
		"of the other name":          {sourceTexts{file: "layout: default\nbit_ts: 42\n"}, 42, "sqlite:/var/lib/kazahana/leases.db"},
	} {
		if s := mustLoad(t, c.src); s.defaultServiceSettings().BitTS != c.bitTS || s.Provider != c.provider {
			t.Errorf("%s: bit_ts %d, provider %s", name, s.defaultServiceSettings().BitTS, s.Provider)
		}
	}
	for file, want := range map[string]int{"layout: js\n": 16, "layout: js\nmax_throughput_per_ms: 64\n": 64} {
		if got := mustLoad(t, sourceTexts{file: file}).defaultServiceSettings().MaxThroughputPerMS; got != want {
			t.Errorf("%q: %d IDs a millisecond, want %d", file, got, want)
		}
	}
	s := mustLoad(t, sourceTexts{file: "provider: https://h\nservices: {web: {layout: js}, old: {}}\n"})
	if web, old := s.Services()["web"].BitTS, s.Services()["old"].BitTS; web != 52 || old != 41 {
		t.Errorf("services have bit_ts %d and %d", web, old)
	}
	s = mustLoad(t, sourceTexts{file: "provider: https://h\nlayout: js\nservices: {old: {bit_ts: 42}, older: {layout: default}}\n"})
	if old, older := s.Services()["old"].BitTS, s.Services()["older"].BitTS; old != 42 || older != 41 {
		t.Errorf("services have bit_ts %d and %d", old, older)
	}
}
