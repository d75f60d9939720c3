package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"time"
)

// document is the needed part of CycloneDX 1.6. It has no serial number, which would
// differ between builds.
type document struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp  string     `json:"timestamp"`
	Component  component  `json:"component"`
	Properties []property `json:"properties"`
}

type component struct {
	Ref      string    `json:"bom-ref"`
	Type     string    `json:"type"`
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Scope    string    `json:"scope,omitempty"`
	Hashes   []digest  `json:"hashes,omitempty"`
	Licences []licence `json:"licenses"`
	PURL     string    `json:"purl"`
}

type digest struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type licence struct {
	Licence struct {
		ID string `json:"id"`
	} `json:"license"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

func cycloneDX(info *buildinfo.BuildInfo, modules []module, version string, date time.Time) document {
	doc := document{Format: "CycloneDX", Spec: "1.6", Version: 1}
	product := module{path: info.Main.Path, version: "v" + version, spdx: []string{"MIT"}}.component()
	product.Type, product.Scope, product.Name = "application", "", "kazahanad"
	doc.Metadata = metadata{Timestamp: date.UTC().Format(time.RFC3339), Component: product, Properties: []property{}}
	for _, setting := range info.Settings {
		if strings.HasPrefix(setting.Key, "GO") || strings.HasPrefix(setting.Key, "vcs.") || setting.Key == "CGO_ENABLED" {
			doc.Metadata.Properties = append(doc.Metadata.Properties, property{"go:build:" + setting.Key, setting.Value})
		}
	}
	all := dependency{Ref: product.Ref, DependsOn: []string{}}
	for _, m := range modules {
		c := m.component()
		doc.Components = append(doc.Components, c)
		all.DependsOn = append(all.DependsOn, c.Ref)
	}
	doc.Dependencies = []dependency{all}
	return doc
}

func (m module) component() component {
	purl := "pkg:golang/" + m.path + "@" + url.PathEscape(m.version)
	c := component{Ref: purl, Type: "library", Name: m.path, Version: m.version, Scope: "required", PURL: purl}
	// The module's hash in go.sum is base64 of SHA-256.
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.sum, "h1:")); err == nil && len(sum) == 32 {
		c.Hashes = []digest{{"SHA-256", hex.EncodeToString(sum)}}
	}
	for _, id := range m.spdx {
		var l licence
		l.Licence.ID = id
		c.Licences = append(c.Licences, l)
	}
	return c
}
