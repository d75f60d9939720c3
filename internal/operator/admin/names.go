package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// OwnNames has a handler that listens on a loopback address answer to this
// host's own names only: localhost, loopback addresses, and the host of the
// configured address. A page of another site, whose name was made to mean
// 127.0.0.1 (DNS rebinding), would else be of the same origin, and could read
// everything. Handlers on Unix sockets, which no browser reaches, and on other
// addresses, which have names that nobody knows here, answer to all.
func OwnNames(on net.Addr, configured string, h http.Handler) http.Handler {
	address, err := netip.ParseAddrPort(on.String())
	if err != nil || !address.Addr().Unmap().IsLoopback() {
		return h
	}
	own := hostOf(configured)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		ip, err := netip.ParseAddr(host)
		if err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost") || own != "" && strings.EqualFold(host, own) {
			h.ServeHTTP(w, r)
			return
		}
		http.Error(w, fmt.Sprintf("this listener is on a loopback address and does not answer to the name %q: use localhost or 127.0.0.1", host),
			http.StatusMisdirectedRequest)
	})
}

// hostOf is the host of HOST or HOST:PORT, without brackets.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
}
