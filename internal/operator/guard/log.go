package guard

import (
	"net/http"
	"net/netip"

	"github.com/kazahana/kazahana/internal/operator/quota"
)

// Note returns what New takes to note in the statistics which limit is reached, and which peer's
// connections are closed.
func Note(stats *quota.Stats, limits map[Reason]quota.Refusal) func(Reason, string) {
	return func(why Reason, peer string) {
		if at, err := netip.ParsePrefix(peer); err == nil {
			peer = "address " + at.Masked().Addr().String()
		}
		if r, ok := limits[why]; ok {
			r.Whose = peer
			stats.Refuse(r)
		}
	}
}

// FromOtherSite reports whether a browser says that a page of another site sent the
// request. A link that a user follows passes: what it opens does not reach the other
// site's page.
func FromOtherSite(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
