package config

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

const samplePath = "../../../packaging/kazahanad.yaml"

// disabledSetting is how the sample writes a setting that it does not make: "#"
// and the key, or "#" and the indentation of what belongs to one. Prose has one
// blank after the "#".
var disabledSetting = regexp.MustCompile(`(?m)^#((?: {2,})?[a-z])`)

// The sample as installed changes one thing.
func TestSampleAsInstalled(t *testing.T) {
	got := mustLoad(t, sourceTexts{file: readSample(t)})
	want := mustLoad(t, sourceTexts{file: "admin_listen: 127.0.0.1:9746\n"})
	got.Config, want.Config = "", ""
	got.origins, want.origins = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSampleShowsDefaults(t *testing.T) {
	sample := readSample(t)
	checkSample(t, sample, &Serve{})
	for _, key := range termsKeys() {
		if !regexp.MustCompile(`(?m)^# .*\b` + key + `\b`).MatchString(sample[strings.Index(sample, "# Further services"):strings.Index(sample, "\n#services:")]) {
			t.Errorf("the sample does not name the terms' %s", key)
		}
	}
	// What has no fixed default is an example, except for these: root's own.
	s := mustLoad(t, sourceTexts{file: disabledSetting.ReplaceAllString(sample, "$1")})
	defaults := mustLoad(t, sourceTexts{})
	if s.Socket != defaults.Socket || s.StateDir != defaults.StateDir || s.Provider != defaults.Provider {
		t.Errorf("paths: %s, %s, %s", s.Socket, s.StateDir, s.Provider)
	}
}

// checkSample: with every line switched on, the sample has every key once, in the
// order of the struct, and shows the default of each key that has a fixed one.
func checkSample(t *testing.T, sample string, settings any) {
	t.Helper()
	root, err := parseFile("sample", []byte(disabledSetting.ReplaceAllString(sample, "$1")))
	must.Succeed(t, err)
	var shown []string
	for _, v := range root.members {
		shown = append(shown, v.key)
		if f := flagNamed(flagsOf(settings), v.key); f != nil && f.hasDefault() && v.text != f.tag.Get("default") {
			t.Errorf("%s: the sample shows %q, and the default is %q", v.key, v.text, f.tag.Get("default"))
		}
	}
	want := slices.DeleteFunc(keysOf(flagsOf(settings)), func(name string) bool { return name == "config" })
	if !slices.Equal(shown, want) {
		t.Errorf("the sample shows %v\nand the keys are    %v", shown, want)
	}
	for line := range strings.SplitSeq(sample, "\n") {
		if len(line) > 80 {
			t.Errorf("longer than 80 columns: %q", line)
		}
	}
}

// Each key comes after prose about it, and what has no default says so.
func TestSampleExplains(t *testing.T) {
	prose := regexp.MustCompile(`^# \S`)
	for paragraph := range strings.SplitSeq(readSample(t), "\n\n") {
		var text, settings []string
		for line := range strings.SplitSeq(strings.TrimSpace(paragraph), "\n") {
			if prose.MatchString(line) {
				text = append(text, line)
			} else {
				settings = append(settings, line)
			}
		}
		if len(settings) > 0 && len(text) == 0 {
			t.Errorf("nothing explains %q", settings)
		}
		for _, setting := range settings {
			name, _, _ := strings.Cut(strings.TrimPrefix(setting, "#"), ":")
			f := flagNamed(flagsOf(&Serve{}), name)
			if f != nil && !f.hasDefault() && !strings.Contains(strings.ToLower(strings.Join(text, " ")), "default") {
				t.Errorf("the text of %s does not state its default", name)
			}
		}
	}
}

func readSample(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(samplePath)
	must.Succeed(t, err)
	return string(data)
}
