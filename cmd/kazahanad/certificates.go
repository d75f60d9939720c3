package main

import (
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
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

// certificateEnds reads when the first certificate of each file ends, the zero time for
// a file that cannot be read. It reads anew each time, since certificates are renewed
// while the process runs.
func certificateEnds(files []string) map[string]time.Time {
	ends := make(map[string]time.Time, len(files))
	for _, file := range files {
		ends[file] = certificateEnd(file)
	}
	return ends
}

func certificateEnd(file string) (end time.Time) {
	text, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}
		}
		if end.IsZero() || c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}
