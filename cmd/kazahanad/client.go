package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/internal/address"
)

// clientFlags are common to the subcommands that ask a running daemon.
type clientFlags struct {
	Socket  string        `placeholder:"PATH" help:"The daemon's Unix socket, a path or a unix:///PATH URI (default $$KAZAHANA_SOCKET, else the first of the usual places that exists)."`
	Timeout time.Duration `default:"10s" help:"How long to wait for the answer."`
}

// client returns a client whose calls take limit at most.
func (f *clientFlags) client(limit time.Duration, opts ...kazahana.Option) (*kazahana.Client, error) {
	opts = append(opts, kazahana.WithTimeout(limit))
	if f.Socket != "" {
		path, err := address.Parse(f.Socket)
		if err != nil {
			return nil, usageError{fmt.Errorf("--socket: %q %w", f.Socket, err)}
		}
		opts = append(opts, kazahana.WithSocket(path))
	}
	client, err := kazahana.New(opts...)
	if err != nil {
		return nil, usageError{fmt.Errorf("--timeout: %w", ofClient(err))}
	}
	return client, nil
}

// once is for commands that a person or a probe waits for: they fail at once if no
// daemon answers.
var once = kazahana.WithSingleAttempt()

// ask calls a method once.
func (f *clientFlags) ask(s *system, limit time.Duration, method string, result any, params ...any) error {
	client, err := f.client(limit, once)
	if err != nil {
		return err
	}
	defer client.Close()
	return ofClient(client.Call(s.ctx, method, result, params...))
}

// ofClient strips the client library's prefix from an error: it means nothing to
// users of the command.
func ofClient(err error) error {
	if err == nil {
		return nil
	}
	return clientError{err}
}

type clientError struct{ error }

func (e clientError) Unwrap() error { return e.error }

func (e clientError) Error() string {
	var unavailable *kazahana.DaemonUnavailableError
	if errors.As(e.error, &unavailable) {
		return unavailable.Err.Error()
	}
	return strings.TrimPrefix(e.error.Error(), "kazahana: ")
}

// hasCode reports whether an error has one of the codes.
func hasCode(err error, codes ...kazahana.Code) bool {
	return slices.ContainsFunc(codes, func(c kazahana.Code) bool { return errors.Is(err, c) })
}

// refusedUsage makes a usage error of a refusal that a repetition would not change.
func refusedUsage(err error) error {
	if hasCode(err, kazahana.ErrInvalidParams, kazahana.ErrUnknownMethod, kazahana.ErrNoStore) {
		return usageError{err}
	}
	return err
}

// printJSON writes the value as indented JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printLines writes one value a line.
func printLines[T any](w io.Writer, all []T) error {
	out := bufio.NewWriter(w)
	for _, one := range all {
		if _, err := fmt.Fprintln(out, one); err != nil {
			return err
		}
	}
	return out.Flush()
}
