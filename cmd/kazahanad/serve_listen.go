package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	doorhttp "github.com/kazahana/kazahana/internal/door/http"
	"github.com/kazahana/kazahana/internal/door/memcached"
	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// beside is a listener beside the socket.
type beside struct{ key, what, address string }

func (b beside) flag() string { return "--" + strings.ReplaceAll(b.key, "_", "-") }

// The keys of the listeners.
const (
	keyAdmin     = "admin_listen"
	keyMemcached = "memcached_listen"
	keyHTTP      = "http_listen"
)

// besides returns the configured ones.
func besides(s *config.Serve) []beside {
	all := []beside{
		{keyAdmin, "metrics and health", s.AdminListen}, {keyMemcached, "IDs by memcached's protocol", s.MemcachedListen}, {keyHTTP, "IDs by HTTP", s.HTTPListen},
	}
	return slices.DeleteFunc(all, func(b beside) bool { return b.address == "" })
}

// listenBeside opens the listeners beside the socket.
func (d *daemonParts) listenBeside() error {
	d.beside = map[string]net.Listener{}
	for _, l := range besides(d.settings) {
		opened, err := listen(l.address, unixsock.Options{Mode: d.settings.SocketMode, Group: d.settings.SocketGroup, Flag: l.flag()})
		if err != nil {
			return fmt.Errorf("%s: %w", l.key, explain(err))
		}
		d.beside[l.key] = opened
	}
	return nil
}

// explain adds to the error of a listener what to do.
func explain(err error) error {
	op, ofNet := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; stop what listens there, or choose another address", err)
	case errors.Is(err, syscall.EACCES) && ofNet && op.Net == "tcp":
		return fmt.Errorf("%w; choose another port, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE", err)
	}
	return err
}

// receiveBuffer is how many bytes of a TCP peer the kernel is asked to keep until they are read.
// Linux keeps twice as much, and without such a bound up to tcp_rmem: megabytes for each
// connection. With less, requests that are sent ahead come in so many pieces that others wait
// longer. Bytes that wait in a Unix socket count for the peer.
const receiveBuffer = 32 << 10

// listen listens on HOST:PORT or unix:PATH.
func listen(address string, o unixsock.Options) (net.Listener, error) {
	network, at := admin.SplitAddress(address)
	if network != "unix" {
		bounded := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
			var failed error
			err := socket.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
			})
			return cmp.Or(err, failed)
		}}
		return bounded.Listen(context.Background(), network, at)
	}
	l, err := unixsock.Listen(at, o)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// openDoors serves memcached_listen and http_listen.
func (d *daemonParts) openDoors(ctx context.Context, part func(context.Context, func(context.Context) error)) {
	if l := d.beside[keyMemcached]; l != nil {
		door := d.server.NewDoor("memcached", memcached.Refusal)
		part(ctx, func(ctx context.Context) error {
			memcached.Serve(ctx, l, door, version)
			return nil
		})
	}
	if l := d.beside[keyHTTP]; l != nil {
		door := d.server.NewDoor("http", doorhttp.Refusal)
		part(ctx, func(ctx context.Context) error {
			return doorhttp.Serve(ctx, l, door, d.settings.HTTPListen, d.serveLog())
		})
	}
}

// announceBeside logs the listeners beside the socket.
func (d *daemonParts) announceBeside() {
	log := d.serveLog()
	for _, l := range besides(d.settings) {
		log.Info(l.what, zap.String(l.key, addressOf(d.beside[l.key])))
	}
	if d.settings.Insecure {
		log.Warn("insecure: any host that reaches memcached_listen or http_listen can take IDs")
	}
}

// addressOf is a listener's address as the configuration writes it.
func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}
