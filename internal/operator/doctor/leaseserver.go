package doctor

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/problem"
)

const (
	// dateResolution is how exact the Date of an answer is.
	dateResolution = time.Second
	// maxAnswer limits how much of an answer is read.
	maxAnswer = 4096
	// probedKey has what proxies change on its way.
	probedKey = "kazahanad/Doctor 100%"
)

// LeaseServers asks each lease server whether it is ready, whether a proxy passes keys on as
// they came, and what time it has. It reports whether one was reached.
func (r *Report) LeaseServers(ctx context.Context, cfg httpconn.Config, clock *Clock) (reached bool) {
	tlsConfig, err := connurl.TLS(cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	transport := &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, server := range cfg.Servers {
		base := *server
		if server.Scheme == httpconn.SchemeUnix {
			transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", server.Path)
			}
			base = url.URL{Scheme: "http", Host: "localhost"}
		}
		failed := err
		if failed == nil {
			failed = r.askReady(ctx, client, server, &base, clock)
		}
		if failed != nil {
			r.Fail("provider", "Bring the lease server back, or correct the provider URL, its ca_file or its certificate.", "%s: %v", server, failed)
			continue
		}
		reached = true
		if stray := askForKey(ctx, cfg, server); stray != nil {
			r.Warn("provider", "Let the proxy pass each path on as it came: docs/providers/http.md, behind a proxy, has the settings.",
				"%s: a lock, a sequence or an actor whose key has a slash, a space or a percent sign cannot be used: %v", server, stray)
		}
	}
	return reached
}

// askReady asks a server for its readiness. The error is that it cannot be reached.
func (r *Report) askReady(ctx context.Context, client *http.Client, server, base *url.URL, clock *Clock) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("readyz").String(), nil)
	if err != nil {
		return err
	}
	began := time.Now()
	res, err := client.Do(req)
	ended := time.Now()
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // the finding names the URL
		err = wrapped.Err
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		clock.compare(server.String(), began, ended, date.Add(dateResolution/2), dateResolution) // Date is rounded down
	}
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented: // servers of another make may lack /readyz
		if media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); media == problem.MediaType {
			// Ours has such a path: a proxy leaves a prefix, or the URL has one too many.
			return fmt.Errorf("%s for %s: a lease server answers, and not at this path", res.Status, req.URL.Path)
		}
	default:
		r.Fail("provider", "Look at the lease server's log: its own store cannot be used.", "%s is not ready: %s", server, res.Status)
	}
	return nil
}

// askForKey looks at a lock with the probed key, where the server keeps locks at all, and
// returns how it strayed.
func askForKey(ctx context.Context, cfg httpconn.Config, server *url.URL) error {
	cfg.Servers = []*url.URL{server}
	client, err := httpconn.New(cfg)
	if err != nil {
		return nil // the provider itself says so
	}
	defer client.Close()
	get := func(key string) (is bool, err error) {
		var answer struct {
			Key string `json:"lock_key"`
		}
		err = client.Do(ctx, httpconn.Call{
			Method: http.MethodGet, Path: "/v1/locks/" + httpconn.Escape(key), Query: url.Values{"lock_key": {key}}, Answer: &answer, Limit: maxAnswer,
		})
		if err == nil && answer.Key != key {
			return true, fmt.Errorf("it answers for the key %q when asked for %q", answer.Key, key)
		}
		is, _ = httpconn.Stray(err)
		return is, err
	}
	if stray, _ := get("kazahanad-doctor"); stray {
		return nil // a server of another make
	}
	if stray, err := get(probedKey); stray {
		return err
	}
	return nil
}
