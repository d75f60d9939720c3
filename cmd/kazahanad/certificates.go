package main

import (
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/operator/metrics"
)

// certificateFiles returns the files of certificates that the URLs of stores name.
func certificateFiles(stores ...string) (files []string) {
	for _, store := range stores {
		// Some of these URLs name several hosts, which url.Parse would refuse.
		_, query, _ := strings.Cut(store, "?")
		values, err := url.ParseQuery(query)
		if file := values.Get("cert_file"); err == nil && file != "" && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files
}

// firstToEnd reads which certificate of each file ends first. It reads anew each time,
// since certificates are renewed while the process runs.
func firstToEnd(files []string) map[string]metrics.Certificate {
	first := make(map[string]metrics.Certificate, len(files))
	for _, file := range files {
		first[file] = firstCertificate(file)
	}
	return first
}

func firstCertificate(file string) (first metrics.Certificate) {
	text, err := os.ReadFile(file)
	if err != nil {
		return metrics.Certificate{}
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return metrics.Certificate{}
		}
		if first.End.IsZero() || c.NotAfter.Before(first.End) {
			first = metrics.Certificate{Begin: c.NotBefore, End: c.NotAfter}
		}
	}
	return first
}
