package guard

import (
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// Warn returns what New takes to log, every 10 s at most, which limit is reached and which
// peer's connections are closed. full and perAddress name the limits.
func Warn(log *zap.Logger, full, perAddress string) func(Reason, string) {
	sparing := &rate.Sometimes{First: 1, Interval: 10 * time.Second}
	limits := map[Reason]string{Full: full, PerAddress: perAddress}
	return func(why Reason, peer string) {
		if limit := limits[why]; limit != "" {
			sparing.Do(func() {
				log.Warn("connections are closed: their limit is reached", zap.String("limit", limit), zap.String("peer", peer))
			})
		}
	}
}

// FromOtherSite reports whether a browser says that a page of another site sent the
// request. A link that a user follows passes: what it opens does not reach the other
// site's page.
func FromOtherSite(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
