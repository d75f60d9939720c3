package leaseserver

import (
	"fmt"
	"net/http"
)

// page says to a person what answers here.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) error {
	info := s.o.Provider.Info()
	state := "ready"
	if s.stopping.Load() {
		state = "stopping"
	}
	return writeText(w, fmt.Sprintf(`kazahana lease server %s, %s, in front of %s

POST   /lease              acquire
DELETE /lease/{id}         release
POST   /lease/{id}/extend  extend
POST   /leases/verify      are these leases still mine?
GET    /leases             who holds which machine ID
GET    /leases/at          who held a machine ID at a time
POST   /v1/locks/{key}/acquire, /renew, /release
GET    /v1/locks, /v1/locks/{key}
POST   /v1/sequences/{key}/next
GET    /stats              counters
GET    /metrics            Prometheus metrics
GET    /healthz, /readyz   health
`, s.o.Version, state, info.Name))
}
