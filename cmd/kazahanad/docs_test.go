package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// docPages are the pages of the repository, by path from its root.
func docPages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{"README.md": "", "CHANGELOG.md": ""}
	err := fs.WalkDir(os.DirFS("../.."), "docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			pages[path] = ""
		}
		return err
	})
	must.Succeed(t, err)
	for path := range pages {
		content, err := os.ReadFile(filepath.Join("../..", path))
		must.Succeed(t, err)
		pages[path] = string(content)
	}
	return pages
}

var (
	docFence   = regexp.MustCompile("(?sm)^( *)```(\\w*)\n(.*?)^ *```$")
	docLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	docHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	docCode    = regexp.MustCompile("`[^`\n]+`|(?m)^    +.*kazahanad .*$")
	docFlag    = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z-]*|-[a-z]\b)`)
	docKey     = regexp.MustCompile("`([a-z_]+): [^` ]+`")
)

// anchors are the names that headings of a page can be linked by.
func anchors(page string) (all []string) {
	for _, m := range docHeading.FindAllStringSubmatch(docFence.ReplaceAllString(page, ""), -1) {
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return all
}

// Each link leads to a page that is there, and to a heading that it has.
func TestDocsLinks(t *testing.T) {
	pages := docPages(t)
	for _, others := range []string{"clients/*/README.md", "clients/*/docs/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join("../..", others))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", others, found, err)
		}
		for _, path := range found {
			page, err := os.ReadFile(path)
			must.Succeed(t, err)
			pages[strings.TrimPrefix(path, "../../")] = string(page)
		}
	}
	for path, page := range pages {
		for _, m := range docLink.FindAllStringSubmatch(docFence.ReplaceAllString(page, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(pages[target]), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", path, m[1], target)
			}
		}
	}
}

// Sections that the seeds ask for speak of what they ask for.
func TestDocsSections(t *testing.T) {
	pages := docPages(t)
	for _, c := range []struct {
		page, heading string
		words         []string
	}{
		{"docs/ids.md", "## Compared with others", []string{"Snowflake", "UUIDv7", "ULID"}}, // seed 000-12-1
		{"docs/clocks.md", "## Setting up NTP", []string{"chrony", "`-x`"}},                 // seed 000-5.6-4
	} {
		_, text, found := strings.Cut(pages[c.page], "\n"+c.heading+"\n")
		text, _, _ = strings.Cut(text, "\n## ")
		for _, word := range c.words {
			if !found || !strings.Contains(text, word) {
				t.Errorf("%s says nothing of %s below %q", c.page, word, c.heading)
			}
		}
	}
}

// Who begins with the README finds every page.
func TestDocsReachable(t *testing.T) {
	pages := docPages(t)
	found, look := map[string]bool{"CHANGELOG.md": true}, []string{"README.md"}
	for len(look) > 0 {
		path := look[0]
		look = look[1:]
		if _, isPage := pages[path]; !isPage || found[path] {
			continue
		}
		found[path] = true
		for _, m := range docLink.FindAllStringSubmatch(docFence.ReplaceAllString(pages[path], ""), -1) {
			file, _, _ := strings.Cut(m[1], "#")
			look = append(look, filepath.Join(filepath.Dir(path), file))
		}
	}
	for path := range pages {
		if !found[path] {
			t.Errorf("no link leads to %s", path)
		}
	}
}

// docWhen is where a provider's page begins to say when to choose it.
var docWhen = regexp.MustCompile(`(?m)^## When to choose it\n\n[^#\n]|^\|.*\| choose it \|$`)

// Who has to decide finds each provider's page, and there when to choose it.
func TestDocsProviders(t *testing.T) {
	pages := docPages(t)
	_, decide, _ := strings.Cut(pages["docs/README.md"], "\n## Decide\n")
	decide, _, _ = strings.Cut(decide, "\n## ")
	providers := 0
	for path, page := range pages {
		name, ok := strings.CutPrefix(path, "docs/")
		if !ok || !strings.HasPrefix(name, "providers/") {
			continue
		}
		providers++
		if !strings.Contains(decide, "]("+name+")") {
			t.Errorf("docs/README.md leads nobody who decides to %s", name)
		}
		if !docWhen.MatchString(page) { // seed 003-9-1
			t.Errorf("%s does not say when to choose it", path)
		}
	}
	if providers == 0 {
		t.Error("there are no pages of providers")
	}
}

// docConfigs are the configurations that the pages show, with the files that
// they name put into the site.
func docConfigs(t *testing.T, s *site, pages map[string]string) map[string][]string {
	t.Helper()
	configs := map[string][]string{}
	for path, page := range pages {
		for _, m := range docFence.FindAllStringSubmatch(page, -1) {
			if m[2] == "yaml" {
				text := strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n")[1:]
				configs[path] = append(configs[path], strings.ReplaceAll(text, "/etc/kazahana/", s.Dir+"/"))
			}
		}
	}
	return configs
}

// What a page shows as configuration, serve or lease-server understands.
func TestDocsConfigurations(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"redis-password", "etcd-password", "external-secret", "token"} {
		testkit.WriteFile(t, s.Path(name), "0123456789abcdef0123456789abcdef\n")
	}
	certificate, _ := loopbackCertificate(t)
	testkit.WriteFile(t, s.Path("etcd-ca.pem"), certificate)
	for path, texts := range docConfigs(t, s, docPages(t)) {
		for _, text := range texts {
			file := s.Path("doc.yaml")
			testkit.WriteFile(t, file, text)
			var tries []testkit.Outcome
			if strings.HasPrefix(text, "- ") {
				tries = append(tries, s.Kazahanad("lease-server", "--check", "--config", "none", "--tokens-file", file))
			} else {
				tries = append(tries, s.Kazahanad("serve", "--check", "--config", file), s.Kazahanad("lease-server", "--check", "--config", file))
			}
			if !slices.ContainsFunc(tries, func(o testkit.Outcome) bool { return o.Code == exitOK }) {
				t.Errorf("%s shows a configuration that is refused:\n%s%s", path, text, tries[0].Stderr)
			}
		}
	}
}

// Flags and keys that the pages name exist.
func TestDocsFlagsAndKeys(t *testing.T) {
	s := newSite(t)
	help := map[string]string{}
	helpOf := func(command string) string {
		if _, known := help[command]; !known {
			words := strings.Fields(command)
			if command == "leases" {
				words = append(words, "show") // its default
			}
			help[command] = s.Kazahanad(append(words, "--help")...).OK(t)
		}
		return help[command]
	}
	commands := []string{
		"serve", "lease-server", "id", "inspect", "bounds", "sql", "layout", "status", "health", "leases init", "leases fence", "leases", "store init", "store fence", "backup", "run", "lock", "locks", "seq", "placement",
		"state show", "state accept-epoch", "state reset-floor", "doctor", "version",
	}
	keys := helpOf("serve") + helpOf("lease-server")
	// Options on the wire, and keys of the entries of sequences.
	nested := []string{"format", "hold", "step", "start", "max_value", "on_max", "ttl", "block", "ttl_ms", "wait_ms"}
	for path, page := range docPages(t) {
		lines := docCode.FindAllString(docFence.ReplaceAllString(page, ""), -1)
		for _, m := range docFence.FindAllStringSubmatch(page, -1) {
			lines = append(lines, strings.Split(strings.ReplaceAll(m[3], "\\\n", " "), "\n")...)
		}
		for _, line := range lines {
			line = strings.Trim(line, "`")
			for i, call := range strings.Split(line, "kazahanad ") {
				command := slices.IndexFunc(commands, func(c string) bool { return call == c || strings.HasPrefix(call, c+" ") })
				if i == 0 || command < 0 {
					continue
				}
				call = regexp.MustCompile(` -- | \| | > |[;)#&] `).Split(call, 2)[0]
				for _, m := range docFlag.FindAllStringSubmatch(call, -1) {
					if !regexp.MustCompile(`(?m)(^|[ ,])` + m[1] + `\b`).MatchString(helpOf(commands[command])) {
						t.Errorf("%s: kazahanad %s has no flag %s: %s", path, commands[command], m[1], line)
					}
				}
			}
		}
		for _, m := range docKey.FindAllStringSubmatch(page, -1) {
			if flag := "--" + strings.ReplaceAll(m[1], "_", "-"); !strings.Contains(keys, flag) && !slices.Contains(nested, m[1]) {
				t.Errorf("%s: neither serve nor lease-server has the key %s: %s", path, m[1], m[0])
			}
		}
	}
}
