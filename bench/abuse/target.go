//go:build linux

package abuse

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/bench/process"
)

const startLimit = time.Minute

// target is a server in a group of its own.
type target struct {
	*process.Service
	places
	group       *group
	victim      *innocent
	state, live string // directories of its files
}

// places are where a server listens.
type places struct{ Socket, Admin, Server, Memcached, HTTP string }

// Tokens of the lease server, each of a tenant of its own.
const (
	innocentToken = "a-token-of-the-innocent-tenant"
	hostileToken  = "a-token-of-the-hostile-tenant"
	tokensFile    = `
- {token: ` + innocentToken + `, tenant: innocent, owner: innocent, scopes: [locks, sequences]}
- {token: ` + hostileToken + `, tenant: hostile, owner: hostile, scopes: [leases, locks, sequences, placements]}
`
)

// start starts what is attacked, with the shipped settings.
func (f *field) start(ctx context.Context, dir string, at aim, more []string) (*target, error) {
	t := &target{state: filepath.Join(dir, "state")}
	var err error
	if t.live, err = os.MkdirTemp("/dev/shm", "kz-abuse-"); err != nil {
		return t, err
	}
	if t.group, err = newGroup(f.memory); err != nil {
		t.group = nil
	}
	arguments := t.daemon
	switch at {
	case server:
		arguments = t.leaseServer
	case doors:
		arguments = t.daemonWithDoors
	}
	args, err := arguments(dir)
	if err != nil {
		return t, err
	}
	args = slices.Concat(args, more)
	if t.group == nil {
		args = append(args, "--memory-limit", strconv.FormatInt(f.memory, 10))
	}
	path, args := t.group.within(f.plan.Daemon, args...)
	if t.Service, err = f.launch.Launch(filepath.Join(dir, "log"), path, args...); err != nil {
		return t, err
	}
	t.victim = newInnocent(t.places, at)
	return t, t.Await(ctx, startLimit, func(context.Context) error { return t.victim.warmUp() })
}

func (t *target) daemon(dir string) (_ []string, err error) {
	t.Socket = filepath.Join(dir, "s")
	if t.Admin, err = process.FreeAddress(); err != nil {
		return nil, err
	}
	return []string{
		"serve", "--config", "none", "--socket", t.Socket, "--socket-mode", "0666", "--state-dir", t.state,
		"--live-dir", t.live, "--admin-listen", t.Admin,
	}, nil
}

func (t *target) daemonWithDoors(dir string) ([]string, error) {
	for _, address := range []*string{&t.Memcached, &t.HTTP} {
		var err error
		if *address, err = process.FreeAddress(); err != nil {
			return nil, err
		}
	}
	args, err := t.daemon(dir)
	return append(args, "--memcached-listen", t.Memcached, "--http-listen", t.HTTP), err
}

func (t *target) leaseServer(dir string) (_ []string, err error) {
	if t.Server, err = process.FreeAddress(); err != nil {
		return nil, err
	}
	tokens := filepath.Join(dir, "tokens.yaml")
	if err := os.WriteFile(tokens, []byte(tokensFile), 0o600); err != nil {
		return nil, err
	}
	cert, key, err := certificate(dir)
	return []string{
		"lease-server", "--config", "none", "--listen", t.Server, "--state-dir", t.state, "--live-dir", t.live,
		"--tls-cert", cert, "--tls-key", key, "--tokens-file", tokens,
	}, err
}

// stop ends the server at once.
func (t *target) stop() {
	if t.victim != nil {
		t.victim.close()
	}
	if t.Service != nil {
		t.Stop()
	}
	t.group.remove()
	_ = os.RemoveAll(t.live)
}

// certificate makes one for this host. The clients here do not check it.
func certificate(dir string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			return "", "", err
		}
	}
	return certFile, keyFile, nil
}

// unchecked is the TLS configuration of the clients here.
func unchecked() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the server is this program's own
}

// lockPath is the path of a lock of the lease server.
func lockPath(key, what string) string { return fmt.Sprintf("/v1/locks/%s%s", key, what) }
