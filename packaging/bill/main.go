// Command bill describes the content of a built binary: a bill of materials in
// CycloneDX's JSON form, and the licences of the linked modules, which must be passed on
// as texts. It reads the binary itself and the module cache, so it needs no network and
// lists only modules that were really linked. With -provenance it describes the files of
// a release instead.
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", "", "version of the product, without v")
	epoch := flag.Int64("epoch", 0, "Unix seconds to date the bill with")
	bill := flag.String("sbom", "", "file to write the bill of materials to")
	licences := flag.String("licences", "", "file to write the licences to")
	release := flag.Bool("provenance", false, "write the provenance of all files in a directory, which is given in place of the binary")
	commit := flag.String("commit", "", "commit that the files were built from")
	targets := flag.String("targets", "", "systems that they were built for")
	tools := flag.String("tools", "", "what they were built with, besides Go: NAME@VERSION, separated by spaces")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		fmt.Fprintln(os.Stderr, "usage: bill -version V [-epoch SECONDS] [-sbom FILE] [-licences FILE] BINARY")
		fmt.Fprintln(os.Stderr, "       bill -provenance -version V -commit C [-epoch SECONDS] [-targets T] [-tools LIST] DIRECTORY")
		os.Exit(2)
	}
	var err error
	if *release {
		err = writeProvenance(flag.Arg(0), source{*version, *commit, *targets, *epoch, strings.Fields(*tools)})
	} else {
		err = run(flag.Arg(0), *version, *epoch, *bill, *licences)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bill:", err)
		os.Exit(1)
	}
}

func run(binary, version string, epoch int64, bill, licences string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	modules, err := modulesOf(info)
	if err != nil {
		return err
	}
	if bill != "" {
		text, err := json.MarshalIndent(cycloneDX(info, modules, version, time.Unix(epoch, 0)), "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(bill, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if licences == "" {
		return nil
	}
	return os.WriteFile(licences, []byte(licenceTexts(modules)), 0o644)
}

// module is a linked module.
type module struct {
	path, version, sum string
	files              []file // licences, by name
	spdx               []string
}

type file struct{ name, text string }

// modulesOf returns the binary's modules and the Go standard library, each with its
// licences. A module without a known licence is an error.
func modulesOf(info *buildinfo.BuildInfo) ([]module, error) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	version := strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go")
	all := []module{{path: "std", version: version}}
	directories, err := directoriesOf(info.Deps)
	if err != nil {
		return nil, err
	}
	directories["std"] = strings.TrimSpace(string(goroot))
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		all = append(all, module{path: dep.Path, version: dep.Version, sum: dep.Sum})
	}
	for i := range all {
		if err := all[i].readLicences(directories[all[i].path]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// directoriesOf returns the modules' directories in the module cache, by path.
func directoriesOf(modules []*debug.Module) (map[string]string, error) {
	args := []string{"mod", "download", "-json"}
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		args = append(args, m.Path+"@"+m.Version)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w: %s", err, out)
	}
	directories := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var found struct{ Path, Dir string }
		if err := d.Decode(&found); err != nil {
			return nil, err
		}
		directories[found.Path] = found.Dir
	}
	return directories, nil
}

var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([._-].*)?$`)

func (m *module) readLicences(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenceName.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		m.files = append(m.files, file{e.Name(), string(text)})
		for _, id := range identify(string(text)) {
			if !slices.Contains(m.spdx, id) {
				m.spdx = append(m.spdx, id)
			}
		}
	}
	if len(m.spdx) == 0 {
		return fmt.Errorf("%s@%s has no licence that is known here (looked in %s)", m.path, m.version, dir)
	}
	return nil
}

// licenceMarks identify a licence by sentences in it.
var licenceMarks = []struct {
	id    string
	marks []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License, version 2.0"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote products"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software for any purpose"}},
	{"MIT", []string{"Permission is hereby granted, free of charge, to any person obtaining a copy"}},
	{"blessing", []string{"May you do good and not evil"}},
}

// identify returns the SPDX identifiers of the known licences in a text.
func identify(text string) (ids []string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, l := range licenceMarks {
		if slices.ContainsFunc(l.marks, func(mark string) bool { return !strings.Contains(text, mark) }) {
			continue
		}
		if l.id != "BSD-2-Clause" || !slices.Contains(ids, "BSD-3-Clause") { // its text contains the other
			ids = append(ids, l.id)
		}
	}
	return ids
}

func licenceTexts(modules []module) string {
	var out strings.Builder
	out.WriteString("kazahanad is one binary that these modules are linked into. Their licences follow.\n\n")
	for _, m := range modules {
		fmt.Fprintf(&out, "  %s %s  %s\n", m.path, m.version, strings.Join(m.spdx, " AND "))
	}
	// Many modules have identical texts.
	var texts []string
	owners := map[string][]string{}
	for _, m := range modules {
		for _, f := range m.files {
			text := strings.TrimSpace(f.text)
			if owners[text] == nil {
				texts = append(texts, text)
			}
			owners[text] = append(owners[text], m.path+": "+f.name)
		}
	}
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n\n%s\n", rule, strings.Join(owners[text], "\n"), rule, text)
	}
	return out.String()
}

var rule = strings.Repeat("-", 78)
