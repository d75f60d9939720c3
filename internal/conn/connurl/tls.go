package connurl

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// TLS returns the configuration of a client that trusts the authorities in caFile, in PEM
// ("" = the system's), and presents the certificate in certFile and keyFile ("" = none). It
// reads the certificate for each connection, since certificates are renewed while the
// daemon runs, and once here, for an early error.
func TLS(caFile, certFile, keyFile string) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s holds no certificate in PEM form", caFile)
		}
	}
	if certFile == "" {
		return out, nil
	}
	load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file %s and key_file %s: %w", certFile, keyFile, err)
		}
		return &pair, nil
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	out.GetClientCertificate = load
	return out, nil
}

// CertificateFiles returns the files of certificates that the URLs of stores name.
func CertificateFiles(stores ...string) (files []string) {
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

// Validity reads which certificate of a file ends first, and since when it is valid. Both times
// are zero if the file cannot be read.
func Validity(file string) (begin, end time.Time) {
	text, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, time.Time{}
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, time.Time{}
		}
		if end.IsZero() || c.NotAfter.Before(end) {
			begin, end = c.NotBefore, c.NotAfter
		}
	}
	return begin, end
}
