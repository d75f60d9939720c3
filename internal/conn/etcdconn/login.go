package etcdconn

import (
	"context"
	"errors"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// login fetches the user's token and adds it to requests.
//
// The client library's own login repeats the login with the expired token attached, which
// servers before 3.5 refuse, until the time is up.
type login struct {
	cfg Config
	// turn is held during a login.
	turn chan struct{}

	mu    sync.Mutex
	token string
	done  bool // the server has answered: with a token, or that it needs none
}

// authService is the service that takes requests without a token.
const authService = "/etcdserverpb.Auth"

func newLogin(cfg Config) *login { return &login{cfg: cfg, turn: make(chan struct{}, 1)} }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (l *login) GetRequestMetadata(_ context.Context, uri ...string) (map[string]string, error) {
	token := l.present()
	if token == "" || len(uri) > 0 && strings.HasSuffix(uri[0], authService) {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. The operator decides
// whether the connection is encrypted.
func (l *login) RequireTransportSecurity() bool { return false }

func (l *login) present() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// refusesToken reports whether a new login may help.
func refusesToken(err error) bool {
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// renew logs in if that was not done yet, or if the last try failed because of the token.
func (l *login) renew(ctx context.Context, kv *clientv3.Client, token string, reason error) error {
	if l.cfg.Username == "" || !l.due(token, reason) {
		return nil
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !l.due(token, reason) {
		return nil // another goroutine has logged in meanwhile
	}
	password, err := l.cfg.password()
	if err != nil {
		return err
	}
	resp, err := kv.Authenticate(ctx, l.cfg.Username, password)
	if err != nil && !errors.Is(err, rpctypes.ErrAuthNotEnabled) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.done = "", true
	if err == nil {
		l.token = resp.Token
	}
	return nil
}

func (l *login) due(token string, reason error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.done || refusesToken(reason) && l.token == token
}
