package connurl

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
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
