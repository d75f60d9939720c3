package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"go.uber.org/zap"

	doorhttp "github.com/kazahana/kazahana/internal/door/http"
	"github.com/kazahana/kazahana/internal/door/memcached"
	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// listenBeside opens the listeners beside the socket.
func (d *daemonParts) listenBeside() error {
	for _, l := range []struct {
		key, address string
		into         *net.Listener
	}{
		{"admin_listen", d.settings.AdminListen, &d.admin},
		{"memcached_listen", d.settings.MemcachedListen, &d.memcached},
		{"http_listen", d.settings.HTTPListen, &d.http},
	} {
		if l.address == "" {
			continue
		}
		opened, err := listen(l.address, unixsock.Options{
			Mode: d.settings.SocketMode, Group: d.settings.SocketGroup, Flag: "--" + strings.ReplaceAll(l.key, "_", "-"),
		})
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("%s: %w; stop what listens there, or choose another address", l.key, err)
			}
			return fmt.Errorf("%s: %w", l.key, err)
		}
		*l.into = opened
	}
	return nil
}

// listen listens on HOST:PORT or unix:PATH.
func listen(address string, o unixsock.Options) (net.Listener, error) {
	network, at := admin.SplitAddress(address)
	if network != "unix" {
		return net.Listen(network, at)
	}
	l, err := unixsock.Listen(at, o)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// openDoors serves memcached_listen and http_listen.
func (d *daemonParts) openDoors(ctx context.Context, part func(context.Context, func(context.Context) error)) {
	if d.memcached != nil {
		door := d.server.NewDoor("memcached", memcached.Refusal)
		part(ctx, func(ctx context.Context) error {
			return memcached.Serve(ctx, d.memcached, door, memcached.Options{Version: version, EventLoop: d.settings.EventLoop, Log: d.serveLog()})
		})
	}
	if d.http != nil {
		door := d.server.NewDoor("http", doorhttp.Refusal)
		part(ctx, func(ctx context.Context) error {
			return doorhttp.Serve(ctx, d.http, door, d.settings.HTTPListen, d.serveLog())
		})
	}
}

// announceBeside logs the listeners beside the socket.
func (d *daemonParts) announceBeside() {
	log := d.serveLog()
	for _, l := range []struct {
		what, key string
		at        net.Listener
	}{
		{"metrics and health", "admin_listen", d.admin},
		{"IDs by memcached's protocol", "memcached_listen", d.memcached},
		{"IDs by HTTP", "http_listen", d.http},
	} {
		if l.at != nil {
			log.Info(l.what, zap.String(l.key, addressOf(l.at)))
		}
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
