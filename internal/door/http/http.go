// Package http answers requests for IDs over HTTP: POST /id, POST /ids?n=, the same below
// /services/NAME, and all of them with GET.
package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// idleTimeout is short because idle connections keep newcomers out where all places are taken.
	idleTimeout = 10 * time.Second
	maxHeader   = 8 << 10
	// connectionSize is what the library holds for a connection, beyond what each
	// connection of the daemon is reckoned with.
	connectionSize = 16 << 10
)

// Serve answers on the listener, which it closes, until ctx is done. Then requests under
// way are answered, for as long as a drain of the daemon takes. configured is the
// listener's address in the configuration.
func Serve(ctx context.Context, l net.Listener, d *daemon.Door, configured string, log *zap.Logger) error {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	errorLog, err := zap.NewStdLogAt(log, zapcore.DebugLevel) // peers choose its text
	if err != nil {
		return err
	}
	message, write := d.Patience()
	server := &http.Server{
		Handler:           admin.OwnNames(l.Addr(), configured, handler(d)),
		ReadHeaderTimeout: min(idleTimeout, message), ReadTimeout: message, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: errorLog,
		BaseContext: func(net.Listener) context.Context { return work },
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			c := nc.(*connection)
			c.work, c.patience = ctx, write
			return context.WithValue(ctx, connectionKey{}, c)
		},
	}
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		waits, over := context.WithTimeout(work, d.DrainTimeout())
		defer over()
		if server.Shutdown(waits) != nil {
			cancel(d.Stopping()) // callers that wait for IDs are told so
			soon, over := context.WithTimeout(context.WithoutCancel(work), time.Second)
			defer over()
			_ = server.Shutdown(soon)
		}
		_ = server.Close()
	})
	err = server.Serve(entrance{d.Listener(l)})
	if !stop() {
		<-drained
	}
	_ = server.Close()
	d.Wait()
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// entrance is a listener of connections that count the library's memory for them.
type entrance struct{ net.Listener }

// Accept implements net.Listener.
func (e entrance) Accept() (net.Conn, error) {
	nc, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := nc.(*daemon.Guest)
	return &connection{Guest: g}, nil
}

type connection struct {
	*daemon.Guest
	work     context.Context // of requests under way
	patience time.Duration   // for the peer to read an answer
	timed    bool            // there is a deadline for it
	counted  sync.Once
}

// Read implements net.Conn. The first one waits for memory: who accepts connections may not.
func (c *connection) Read(b []byte) (int, error) {
	c.counted.Do(func() { c.Memory().Take(connectionSize) })
	return c.Guest.Read(b)
}

// Write implements net.Conn. The deadline of an answer begins with its first bytes. It cannot begin with
// the request, which may wait for long.
func (c *connection) Write(b []byte) (int, error) {
	if !c.timed {
		if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
			return 0, err
		}
	}
	return c.Guest.Write(b)
}

// SetWriteDeadline implements net.Conn. The library takes the deadline away after each answer.
func (c *connection) SetWriteDeadline(t time.Time) error {
	c.timed = !t.IsZero()
	return c.Guest.SetWriteDeadline(t)
}

// waits is the context in which a request of the connection waits for IDs. The request's own is done when
// its peer sends no more. Such a peer may still read; if it is gone, the server ends the wait, where it can
// tell.
func (c *connection) waits(r *http.Request) context.Context {
	if c.Watched() {
		return c.work
	}
	return r.Context()
}

// connectionKey is the context key of a request's connection.
type connectionKey struct{}

func connectionOf(ctx context.Context) *connection { return ctx.Value(connectionKey{}).(*connection) }

type answerer struct{ door *daemon.Door }

func handler(d *daemon.Door) http.Handler {
	a := answerer{d}
	mux := http.NewServeMux()
	mux.HandleFunc("/id", a.single)
	mux.HandleFunc("/ids", a.batch)
	mux.HandleFunc("/services/{service}/id", a.single)
	mux.HandleFunc("/services/{service}/ids", a.batch)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		write(w, problem.New(problem.NotFound, "there are POST /id, /ids?n=COUNT, /services/NAME/id and /services/NAME/ids?n=COUNT"))
	})
	return mux
}

func (a answerer) single(w http.ResponseWriter, r *http.Request) { a.answer(w, r, false) }
func (a answerer) batch(w http.ResponseWriter, r *http.Request)  { a.answer(w, r, true) }

// ask is what a request wants.
type ask struct {
	generator.Request
	service  *issuer.Service
	external bool
}

func (a answerer) answer(w http.ResponseWriter, r *http.Request, batch bool) {
	if r.Method != http.MethodGet && r.Method != http.MethodPost { // a HEAD would use up an ID
		w.Header().Set("Allow", "GET, POST")
		write(w, problem.New(problem.MethodNotAllowed, "%s is not allowed: POST and GET are", r.Method))
		return
	}
	if admin.FromOtherSite(r) {
		write(w, problemOf(wire.Errorf(wire.CodePermissionDenied, "a page of another site asks, and pages get no IDs")))
		return
	}
	began := a.door.Elapsed()
	q, err := a.read(r, batch)
	if err == nil {
		err = refuseBody(r)
	}
	var ranges []generator.Range
	if err == nil {
		c := connectionOf(r.Context())
		defer c.Room(q.Count)()
		ranges, err = c.Next(c.waits(r), q.service, q.Request, make([]generator.Range, 0, 4))
	}
	if err != nil {
		reply := a.door.Failed(err, began)
		if reply == nil {
			panic(http.ErrAbortHandler) // a return would be an empty answer
		}
		write(w, problemOf(reply))
		return
	}
	a.door.Answered(began)
	head(w.Header())
	if wantsJSON(r.Header.Get("Accept")) {
		w.Header().Set("Content-Type", "application/json")
		q.json(w, ranges, batch)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	q.lines(w, ranges, "", "\n", "")
}

// wantsJSON reports whether an Accept header names JSON. Weights do not matter: who names it reads it.
func wantsJSON(accept string) bool {
	return strings.Contains(strings.ToLower(accept), "application/json")
}

// refuseBody reads the body, which must say nothing: a client that puts a parameter there would
// not get its wish. Many clients send an empty object where their user gives no body.
func refuseBody(r *http.Request) error {
	const most = 16
	if r.ContentLength == 0 {
		return nil
	}
	b := []byte("too long")
	if r.ContentLength <= most { // else a client that expects 100 Continue would send it
		var err error
		if b, err = io.ReadAll(io.LimitReader(r.Body, most+1)); err != nil {
			return wire.Errorf(wire.CodeInvalidParams, "the body cannot be read: %v", err)
		}
	}
	switch string(bytes.TrimSpace(b)) {
	case "", "{}", "[]", "null":
		return nil
	}
	return wire.Errorf(wire.CodeInvalidParams, "there is a body, where none is read: parameters are in the query, for example /ids?n=5")
}

// head forbids caches to keep an answer, and pages of other sites to read it. Some caches are told to ignore
// Cache-Control; most of these respect the *, to which no request is equal.
func head(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "*")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

func (q ask) json(w http.ResponseWriter, ranges []generator.Range, batch bool) {
	if batch {
		q.lines(w, ranges, `{"ids":["`, `","`, `"]}`)
	} else {
		q.lines(w, ranges, `{"id":"`, "", `"}`)
	}
}

// lines writes the IDs in pieces: a peer that does not read holds little.
func (q ask) lines(w http.ResponseWriter, ranges []generator.Range, before, between, after string) {
	const piece = 4 << 10
	out := append(make([]byte, 0, min(q.Count*24+64, 2*piece)), before...)
	first := true
	for _, r := range ranges {
		for i := range r.Count {
			if !first {
				out = append(out, between...)
			}
			first = false
			if id := r.Start + snowflake.ID(i); q.external {
				out = append(out, q.service.Codec().Encode(id)...)
			} else {
				out = strconv.AppendInt(out, int64(id), 10)
			}
			if len(out) >= piece {
				if _, err := w.Write(out); err != nil {
					return
				}
				out = out[:0]
			}
		}
	}
	_, _ = w.Write(append(out, after...)) // an error means that the peer has gone
}

// read understands the path and the query. The query has the names and limits of NextID's and
// NextIDs' options.
func (a answerer) read(r *http.Request, batch bool) (q ask, err error) {
	q.Request = generator.Request{Count: 1, Timeout: daemon.DefaultTimeout}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, wire.Errorf(wire.CodeInvalidParams, "the query cannot be read: %v", err)
	}
	for name, texts := range values {
		if r.Method == http.MethodGet && !parameters[name] {
			continue // such as ?_=TIME, which makes a cache ask
		}
		if len(texts) > 1 {
			return q, wire.Errorf(wire.CodeInvalidParams, "%s is there %d times: once is enough", wire.Excerpt([]byte(name)), len(texts))
		}
		if err := q.set(name, texts[0], batch); err != nil {
			return q, err
		}
	}
	q.service, err = a.door.ServiceOf([]byte(r.PathValue("service")))
	return q, err
}

// parameters are the names that set understands.
var parameters = map[string]bool{"n": true, "format": true, "regular_only": true, "timeout_ms": true}

func (q *ask) set(name, text string, batch bool) error {
	switch {
	case name == "n" && batch:
		n, err := number(name, text, 1, daemon.MaxBatch)
		q.Count = n
		return err
	case name == "timeout_ms":
		ms, err := number(name, text, 0, daemon.MaxTimeout.Milliseconds())
		q.Timeout = time.Duration(ms) * time.Millisecond
		return err
	case name == "regular_only" && (text == "true" || text == "false"):
		q.RegularOnly = text == "true"
		return nil
	case name == "regular_only":
		return wire.Errorf(wire.CodeInvalidParams, "regular_only is true or false, and not %s", wire.Excerpt([]byte(text)))
	case name == "format" && (text == "int" || text == "string" || text == "external"):
		q.external = text == "external"
		return nil
	case name == "format":
		return wire.Errorf(wire.CodeInvalidParams, "there is no format %s; there are int, string, external", wire.Excerpt([]byte(text)))
	}
	known := "format, regular_only, timeout_ms"
	if batch {
		known = "n, " + known
	}
	return wire.Errorf(wire.CodeInvalidParams, "there is no parameter %s; there are %s", wire.Excerpt([]byte(name)), known)
}

func number(name, text string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most || strconv.FormatInt(n, 10) != text {
		return 0, wire.Errorf(wire.CodeInvalidParams, "%s is a number from %d to %d, and not %s", name, least, most, wire.Excerpt([]byte(text)))
	}
	return n, nil
}

// status is the HTTP status of the codes for which it is not 503.
var status = map[wire.Code]int{
	wire.CodeUnknownService: http.StatusNotFound, wire.CodeInvalidParams: http.StatusBadRequest,
	wire.CodePermissionDenied: http.StatusForbidden, wire.CodeTimestampOverflow: http.StatusInternalServerError,
	"INTERNAL": http.StatusInternalServerError,
}

// problemOf is an error of the wire as a problem.
func problemOf(e *wire.Error) *problem.Problem {
	p := &problem.Problem{Type: "about:blank", Status: status[e.Code], Code: problem.Code(e.Code)}
	if p.Status == 0 {
		p.Status = http.StatusServiceUnavailable
		p.After(time.Second)
	}
	p.Title = http.StatusText(p.Status)
	p.Detail = strings.TrimPrefix(e.Error(), string(e.Code)+": ")
	return p
}

func write(w http.ResponseWriter, p *problem.Problem) {
	fill(w.Header(), p)
	w.WriteHeader(p.Status)
	_, _ = w.Write(body(p))
}

// fill sets the headers of a problem.
func fill(h http.Header, p *problem.Problem) {
	head(h)
	h.Set("Content-Type", problem.MediaType)
	if after := p.RetryAfter(); after != "" {
		h.Set("Retry-After", after)
	}
}

func body(p *problem.Problem) []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // it has texts and numbers only
	}
	return append(b, '\n')
}

// Refusal is the answer to a connection that is turned away.
func Refusal(e *wire.Error) []byte {
	p := problemOf(e)
	b := body(p)
	h := http.Header{}
	fill(h, p)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	h.Set("Connection", "close")
	var out bytes.Buffer
	fmt.Fprintf(&out, "HTTP/1.1 %d %s\r\n", p.Status, p.Title)
	_ = h.Write(&out) // a Buffer takes all
	return append(append(out.Bytes(), "\r\n"...), b...)
}
