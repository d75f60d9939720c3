package etcdconn

import (
	"context"
	"errors"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// login fetches the token that stands for the user, and adds it to requests.
//
// The client library could do that. Its present version logs in anew with the
// token that has expired still attached, which servers before 3.5 refuse, and
// tries that again and again until time is up.
type login struct {
	cfg Config
	// turn is held by who is logging in.
	turn chan struct{}

	mu    sync.Mutex
	token string
	done  bool // the server has answered: with a token, or that it wants none
}

// authService is where requests carry no token.
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

// RequireTransportSecurity implements credentials.PerRPCCredentials. Whether
// the connection is encrypted is the operator's choice.
func (l *login) RequireTransportSecurity() bool { return false }

func (l *login) present() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// refusesToken reports whether logging in anew may help.
func refusesToken(err error) bool {
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// renew logs in where that was not done yet, or where the last try, with the
// token, failed because of it.
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
		return nil // another one has done it meanwhile
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
