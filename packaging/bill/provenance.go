package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// home is where the project lives, as the documents name it.
const home = "https://github.com/kazahana/kazahana"

// statement is the needed part of an in-toto statement with SLSA's provenance, both in
// version 1: which files were made from which commit, and with what. It names no host
// and no time, so that everybody who builds the commit gets the same.
type statement struct {
	Type      string     `json:"_type"`
	Subject   []resource `json:"subject"`
	Kind      string     `json:"predicateType"`
	Predicate struct {
		Definition struct {
			BuildType    string            `json:"buildType"`
			External     map[string]string `json:"externalParameters"`
			Internal     map[string]string `json:"internalParameters"`
			Dependencies []resource        `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		Details struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

// resource is a file by its name, or a dependency by its URI.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// source is what a release was made from.
type source struct {
	version, commit, targets string
	epoch                    int64
	tools                    []string // NAME@VERSION
}

// writeProvenance describes all files in a release's directory, in one more file there.
// The modules are those of the bill of materials, which is one of the files.
func writeProvenance(dir string, from source) error {
	if len(from.commit) != 40 {
		return fmt.Errorf("-commit is %q: want the 40 digits of a git commit", from.commit)
	}
	name := "kazahana_" + from.version + ".provenance.json"
	files, err := digests(dir, name)
	if err != nil {
		return err
	}
	var bill document
	text, err := os.ReadFile(filepath.Join(dir, "kazahanad_"+from.version+".cdx.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &bill); err != nil {
		return fmt.Errorf("the bill of materials: %w", err)
	}
	out, err := json.MarshalIndent(provenance(files, bill, from), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), append(out, '\n'), 0o644)
}

// digests are the files of a directory except one, by name.
func digests(dir, except string) (files []resource, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == except {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		files = append(files, resource{Name: e.Name(), Digest: map[string]string{"sha256": hex.EncodeToString(sum.Sum(nil))}})
	}
	return files, nil
}

func provenance(files []resource, bill document, from source) (s statement) {
	s.Type, s.Kind, s.Subject = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1", files
	d := &s.Predicate.Definition
	d.BuildType = home + "/blob/main/docs/packages.md#building-a-release"
	d.External = map[string]string{"version": from.version, "targets": from.targets}
	d.Internal = map[string]string{"SOURCE_DATE_EPOCH": fmt.Sprint(from.epoch)}
	d.Dependencies = []resource{{URI: "git+" + home + "@" + from.commit, Digest: map[string]string{"gitCommit": from.commit}}}
	for _, tool := range slices.Sorted(slices.Values(from.tools)) {
		d.Dependencies = append(d.Dependencies, resource{URI: "pkg:generic/" + tool})
	}
	for _, c := range bill.Components {
		module := resource{URI: c.PURL}
		for _, h := range c.Hashes {
			module.Digest = map[string]string{"dirHash": strings.ToLower(h.Content)} // in-toto's name for go.sum's
		}
		d.Dependencies = append(d.Dependencies, module)
	}
	s.Predicate.Details.Builder.ID = home + "/blob/" + from.commit + "/scripts/release"
	return s
}
