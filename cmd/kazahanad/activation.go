package main

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/operator/admin"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// adopt sets the socket path to the service manager's socket, if there is one.
func adopt(settings *config.Serve, socket *unixsock.Listener) error {
	if socket == nil {
		return nil
	}
	if settings.Given("socket") && settings.Socket != socket.Path() {
		return fmt.Errorf("%s is %s, and the socket that the service manager opened is %s: leave out socket, or make it the ListenStream= of the socket unit",
			settings.Cite("socket"), settings.Socket, socket.Path())
	}
	settings.Socket, settings.SocketInTmp = socket.Path(), false
	return nil
}

// warnOfIdleKeys warns of settings that the socket unit overrides. A setting that also applies to
// the socket of another listener is not idle.
func warnOfIdleKeys(settings *config.Serve, log *zap.Logger) {
	for _, address := range []string{settings.AdminListen, settings.MemcachedListen, settings.HTTPListen} {
		if network, _ := admin.SplitAddress(address); network == "unix" {
			return
		}
	}
	for key, directive := range map[string]string{"socket_mode": "SocketMode=", "socket_group": "SocketGroup="} {
		if settings.Given(key) {
			log.Warn("a key has no effect: the service manager made the socket", zap.String("key", key), zap.String("set_in", settings.Cite(key)), zap.String("use", directive))
		}
	}
}
