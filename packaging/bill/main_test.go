package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

const mit = "Permission is hereby granted, free of charge, to any person\nobtaining a copy of this software"

func TestIdentify(t *testing.T) {
	bsd := "Redistribution and use in source and\n   binary forms, with or without modification, are permitted. "
	for text, want := range map[string][]string{
		mit: {"MIT"},
		bsd: {"BSD-2-Clause"},
		bsd + "may not be used to endorse or promote products derived from": {"BSD-3-Clause"},
		"Apache License\n Version 2.0, January 2004\n" + mit:                {"Apache-2.0", "MIT"},
		"All rights reserved.": nil,
	} {
		if got := identify(text); !slices.Equal(got, want) {
			t.Errorf("%.40q is %q, want %q", text, got, want)
		}
	}
}

// A module without a known licence is an error, and not left out.
func TestUnknownLicence(t *testing.T) {
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("All rights reserved."), 0o600))
	m := module{path: "example.org/closed", version: "v1.0.0"}
	if err := m.readLicences(dir); err == nil || !strings.Contains(err.Error(), "example.org/closed@v1.0.0 has no licence") {
		t.Errorf("the error is %v", err)
	}
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "COPYING.md"), []byte(mit), 0o600))
	if err := m.readLicences(dir); err != nil || !slices.Equal(m.spdx, []string{"MIT"}) {
		t.Errorf("with a second file: %q, %v", m.spdx, err)
	}
}

func TestBill(t *testing.T) {
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.0"}
	info.Main.Path = "github.com/kazahana/kazahana"
	modules := []module{
		{path: "std", version: "1.26.0", spdx: []string{"BSD-3-Clause"}},
		{path: "example.org/x", version: "v1.2.3+incompatible", sum: "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", spdx: []string{"MIT"}},
	}
	doc := cycloneDX(info, modules, "1.0.0", time.Unix(0, 0))
	text, err := json.Marshal(doc)
	must.Succeed(t, err)
	for _, part := range []string{
		`"bomFormat":"CycloneDX","specVersion":"1.6"`, `"timestamp":"1970-01-01T00:00:00Z"`,
		`"purl":"pkg:golang/github.com/kazahana/kazahana@v1.0.0"`,
		`"hashes":[{"alg":"SHA-256","content":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]`,
		`"dependsOn":["pkg:golang/std@1.26.0","pkg:golang/example.org/x@v1.2.3+incompatible"]`,
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the bill lacks %s:\n%s", part, text)
		}
	}
}

// The licences are the linked modules', each text once.
func TestLicenceTexts(t *testing.T) {
	text := licenceTexts([]module{
		{path: "a", version: "v1", spdx: []string{"MIT"}, files: []file{{"LICENSE", mit}}},
		{path: "b", version: "v2", spdx: []string{"MIT"}, files: []file{{"LICENSE", mit + "\n"}}},
	})
	if strings.Count(text, mit) != 1 || !strings.Contains(text, "a: LICENSE\nb: LICENSE\n") || !strings.Contains(text, "  b v2  MIT\n") {
		t.Errorf("it is\n%s", text)
	}
}

// The provenance names each file, the commit, the tools and the modules; it is the
// same on every machine, and says nothing of a directory that lacks its bill.
func TestProvenance(t *testing.T) {
	dir := t.TempDir()
	from := source{version: "1.0.0", commit: strings.Repeat("ab", 20), targets: "linux/amd64", epoch: 7, tools: []string{"npm@11", "nfpm@v2"}}
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "a.deb"), nil, 0o600))
	if err := writeProvenance(dir, from); err == nil {
		t.Error("there is no bill of materials, and no error")
	}
	bill := `{"components": [{"purl": "pkg:golang/example.org/x@v1", "hashes": [{"alg": "SHA-256", "content": "E3B0"}]}]}`
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "kazahanad_1.0.0.cdx.json"), []byte(bill), 0o600))
	var texts [2]string
	for i := range texts { // the second time the file is there already
		must.Succeed(t, writeProvenance(dir, from))
		text, err := os.ReadFile(filepath.Join(dir, "kazahana_1.0.0.provenance.json"))
		must.Succeed(t, err)
		texts[i] = strings.Join(strings.Fields(string(text)), "")
	}
	if texts[0] != texts[1] {
		t.Errorf("it differs: %s\n%s", texts[0], texts[1])
	}
	for _, part := range []string{
		`"_type":"https://in-toto.io/Statement/v1"`, `"predicateType":"https://slsa.dev/provenance/v1"`,
		`{"name":"a.deb","digest":{"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}`,
		`"digest":{"gitCommit":"` + from.commit + `"}`, `{"uri":"pkg:generic/nfpm@v2"},{"uri":"pkg:generic/npm@11"}`,
		`{"uri":"pkg:golang/example.org/x@v1","digest":{"dirHash":"e3b0"}}`,
	} {
		if !strings.Contains(texts[0], part) {
			t.Errorf("it lacks %s:\n%s", part, texts[0])
		}
	}
	from.commit = "unknown"
	if err := writeProvenance(dir, from); err == nil || !strings.Contains(err.Error(), "-commit") {
		t.Errorf("without a commit: %v", err)
	}
}
