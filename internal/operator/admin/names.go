package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// OwnNames makes a handler on a loopback address answer to this host's own names
// only: localhost, loopback addresses, and the host of the configured address.
// Otherwise a page of another site could use DNS rebinding, have the same origin as
// this server, and read everything. A request without a host comes from no browser, but
// from a health check in HTTP/1.0, and is answered. Handlers on Unix sockets, which browsers cannot
// reach, and on other addresses, which may have any names, answer to any name.
func OwnNames(on net.Addr, configured string, h http.Handler) http.Handler {
	address, err := netip.ParseAddrPort(on.String())
	if err != nil || !address.Addr().Unmap().IsLoopback() {
		return h
	}
	own := hostOf(configured)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		ip, err := netip.ParseAddr(host)
		if host == "" || err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost") || own != "" && strings.EqualFold(host, own) {
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

// FromOtherSite reports whether a browser says that a page of another site sent the
// request. A link that a user follows passes: the opened page does not reach the other
// site's page.
func FromOtherSite(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
