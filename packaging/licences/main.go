// Command licences writes the licences of the modules that are linked into a binary, which must be
// passed on as texts. It reads the binary itself and the module cache, so it needs no network and
// lists only modules that were really linked.
//
//	go run ./packaging/licences BINARY >FILE
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: licences BINARY")
		os.Exit(2)
	}
	text, err := licencesOf(os.Args[1])
	if err == nil {
		_, err = os.Stdout.WriteString(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func licencesOf(binary string) (string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	all := []module{{Path: "std", Version: strings.Fields(info.GoVersion)[0], Dir: strings.TrimSpace(string(goroot))}}
	args := []string{"mod", "download", "-json"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		args = append(args, m.Path+"@"+m.Version)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		return "", fmt.Errorf("go mod download: %w: %s", err, out)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var m module
		if err := d.Decode(&m); err != nil {
			return "", err
		}
		all = append(all, m)
	}
	return texts(all)
}

// module is a linked module, and its directory in the module cache.
type module struct{ Path, Version, Dir string }

var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([._-].*)?$`)

var rule = strings.Repeat("-", 78)

// texts are the licences of the modules, each text once: many are the same. A module without a
// licence is an error.
func texts(modules []module) (string, error) {
	var out strings.Builder
	out.WriteString("kazahanad is one binary that these modules are linked into. Their licences follow.\n\n")
	var different []string
	owners := map[string][]string{} // by text
	for _, m := range modules {
		fmt.Fprintf(&out, "  %s %s\n", m.Path, m.Version)
		entries, err := os.ReadDir(m.Dir)
		if err != nil {
			return "", err
		}
		found := false
		for _, e := range entries {
			if !e.Type().IsRegular() || !licenceName.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(m.Dir, e.Name()))
			if err != nil {
				return "", err
			}
			found = true
			trimmed := strings.TrimSpace(string(text))
			if owners[trimmed] == nil {
				different = append(different, trimmed)
			}
			owners[trimmed] = append(owners[trimmed], m.Path+": "+e.Name())
		}
		if !found {
			return "", fmt.Errorf("%s@%s has no licence in %s", m.Path, m.Version, m.Dir)
		}
	}
	for _, text := range different {
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n\n%s\n", rule, strings.Join(owners[text], "\n"), rule, text)
	}
	return out.String(), nil
}
