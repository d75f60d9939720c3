package connurl

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Secret is a password, nil if there is none. As a function it cannot be printed with
// what holds it.
type Secret func() string

// User parses the part of a URL before the '@'.
func User(text string) (name string, password Secret, err error) {
	user, secret, _ := strings.Cut(text, ":")
	name, err1 := url.PathUnescape(user)
	plain, err2 := url.PathUnescape(secret)
	if err1 != nil || err2 != nil {
		return "", nil, errors.New("the user or password in the provider URL is malformed: special characters must be percent-encoded")
	}
	if plain != "" {
		password = func() string { return plain }
	}
	return name, password, nil
}

// maxPassword is how many bytes a password file may have.
const maxPassword = 4096

// Password returns the password, or the content of the file without one trailing newline;
// "" where there is neither.
func (s Secret) Password(file string) (string, error) {
	if s != nil {
		return s(), nil
	}
	if file == "" {
		return "", nil
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPassword+2))
	text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if err != nil || text == "" || len(text) > maxPassword {
		return "", errors.Join(fmt.Errorf("password_file %s: it must hold the password and nothing else", file), err)
	}
	return text, nil
}

// Address returns the host and port in a URL's list of hosts; false if it is malformed.
// The text is not for errors: a password that is not percent-encoded may be in it.
func Address(text, defaultPort string) (string, bool) {
	host, port, err := net.SplitHostPort(text)
	if err != nil { // no port, or no address
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), defaultPort
	}
	address := net.JoinHostPort(host, port)
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return "", false
	}
	if strings.Contains(host, ":") {
		_, err := netip.ParseAddr(host)
		return address, err == nil
	}
	unfit := func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune("@[]/%", r)
	}
	return address, !strings.ContainsFunc(host, unfit)
}

// MaxLockTTL parses the parameter max_lock_ttl; 0 means that it is not there.
func MaxLockTTL(q url.Values) (time.Duration, error) {
	d, err := Milliseconds(q, "max_lock_ttl")
	if err == nil && d == 0 && q.Has("max_lock_ttl") {
		err = errors.New("max_lock_ttl=0: write the longest term that a lock may have, for example max_lock_ttl=10m")
	}
	return d, err
}

// longest is the most that a parameter may be that is a duration.
const longest = 2 * 366 * 24 * time.Hour

// Milliseconds parses a parameter that is a duration of whole milliseconds, from 0 to longest.
func Milliseconds(q url.Values, name string) (time.Duration, error) {
	if !q.Has(name) {
		return 0, nil
	}
	d, err := time.ParseDuration(q.Get(name))
	if err != nil || d < 0 || d > longest || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%s=%s: write a duration in whole milliseconds, at most %v, for example %s=10m", name, q.Get(name), longest, name)
	}
	return d, nil
}

// IsTimeout reports whether time ran out.
func IsTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// Explain puts the server's place and a hint, if any, in front of its error.
func Explain(place, hint string, err error) error {
	if hint != "" {
		hint += ": "
	}
	switch {
	case err == nil:
		return nil
	case IsTimeout(err) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		// The connection's timeout is the context's, and may expire a moment before it.
		return fmt.Errorf("%s: %s%w (%w)", place, hint, err, context.DeadlineExceeded)
	}
	return fmt.Errorf("%s: %s%w", place, hint, err)
}

// Hint is what to do about an error of the network or of TLS; "" where that is not known.
func Hint(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.As(err, &unknown):
		return "the server's certificate is not signed by an authority known here (ca_file=)"
	case errors.As(err, &name):
		return "the server's certificate is for another name"
	case errors.Is(err, os.ErrPermission):
		return "the socket cannot be opened by this user"
	case IsTimeout(err):
		return "the server did not answer in time"
	}
	return ""
}
