package leaseserver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"go.uber.org/zap"
)

// TLSFiles names the files of a TLS server.
type TLSFiles struct {
	Cert, Key string
	ClientCA  string // "" = clients need no certificate
}

// protocols are the server's offers: a client that knows only others is told so.
var protocols = []string{"http/1.1"}

// NewTLS loads the files. The configuration of ServerTLS follows their changes.
func NewTLS(files TLSFiles, log *zap.Logger) (*Reloaded[*tls.Config], error) {
	paths := []string{files.Cert, files.Key}
	if files.ClientCA != "" {
		paths = append(paths, files.ClientCA)
	}
	return NewReloaded("the TLS certificates", paths, files.load, log)
}

func (f TLSFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("tls_cert and tls_key: %w", err)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: protocols}
	if f.ClientCA == "" {
		return out, nil
	}
	pem, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("client_ca: %w", err)
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client_ca: %s holds no certificate in PEM form", f.ClientCA)
	}
	// Health probes have no certificate. Requests that need one are refused later.
	out.ClientAuth = tls.VerifyClientCertIfGiven
	return out, nil
}

// ServerTLS is the configuration for a listener.
func ServerTLS(r *Reloaded[*tls.Config]) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.Get(), nil },
	}
}
