package leaseserver

import (
	"net/http"
	"net/url"
	"sort"
	"strings"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// mapPart is the part of a pool that a map shows.
type mapPart struct {
	bitSeq         int
	from, to, each int64 // machine IDs
}

// slotMap answers with the state of a pool's slots.
func (s *Server) slotMap(w http.ResponseWriter, r *http.Request, _ Credential) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	service := q.Get(leaseapi.ParamService) // of any tenant: the scope is admin
	terms := s.o.Services.Of(service)
	ids := terms.Range()
	from, to, err := readRange(q, ids)
	if err != nil {
		return err
	}
	cells, err := readLimit(q, leaseapi.ParamCells, leaseapi.MaxCells)
	if err != nil {
		return err
	}
	v, err := s.view(r.Context(), service)
	if err != nil {
		return err
	}
	each := int64(1) // a power of two, so that the cells of a larger map contain whole cells of a smaller one
	for (to-from+each-1)/each > cells {
		each *= 2
	}
	return answer(w, leaseapi.SlotMap{
		Service: service, Pool: terms.Pool, BitID: terms.BitID, BitSeq: terms.BitSeq, Low: ids.Low, End: ids.End,
		From: from, To: to, IDsPerCell: each, Cells: v.cells(mapPart{terms.BitSeq, from, to, each}), ListedAt: v.atMS,
	})
}

// readRange parses ?from= and ?to=; without them, all machine IDs.
func readRange(q url.Values, ids provider.IDRange) (from, to int64, err error) {
	from, to = ids.Low, ids.End
	for name, into := range map[string]*int64{leaseapi.ParamFrom: &from, leaseapi.ParamTo: &to} {
		n, err := number(q, name)
		if err != nil {
			return 0, 0, err
		}
		if n != nil {
			*into = *n
		}
	}
	if from < ids.Low || to > ids.End || from >= to {
		return 0, 0, problem.New(problem.InvalidRequest, "from and to must be machine IDs of [%d, %d), and to be above from", ids.Low, ids.End)
	}
	return from, to, nil
}

// readLimit parses ?limit= and the like; without it, the maximum.
func readLimit(q url.Values, name string, most int64) (int64, error) {
	n, err := number(q, name)
	if err != nil || n == nil {
		return most, err
	}
	if *n < 1 || *n > most {
		return 0, problem.New(problem.InvalidRequest, "%s must be from 1 to %d", name, most)
	}
	return *n, nil
}

// state returns the state of a slot with the record as its latest grant.
func state(r provider.Record, nowMS int64) string {
	switch {
	case r.Held(nowMS):
		return leaseapi.SlotLeased
	case nowMS < r.End:
		return leaseapi.SlotQuarantined
	}
	return leaseapi.SlotFree
}

// cells returns the map, a byte per cell.
func (v *view) cells(k mapPart) []byte {
	out := make([]byte, int((k.to-k.from+k.each-1)/k.each))
	leased := v.covered(k, len(out), func(is string) bool { return is == leaseapi.SlotLeased })
	taken := v.covered(k, len(out), func(is string) bool { return is != leaseapi.SlotFree })
	for i := range out {
		size := min(k.each, k.to-k.from-int64(i)*k.each)
		out[i] = share(leased[i], size)<<4 | share(taken[i]-leased[i], size)
	}
	return out
}

// covered counts, for each cell, the machine IDs with an overlapping slot in a wanted
// state.
func (v *view) covered(k mapPart, cells int, wanted func(state string) bool) []int64 {
	counts, next := make([]int64, cells), k.from // below next everything has been counted
	for i := range v.records {
		if !wanted(state(v.records[i], v.atMS)) {
			continue
		}
		slot := v.records[i].Lease.Slot()
		low, end := max(slot.Start>>k.bitSeq, next), min((slot.End-1)>>k.bitSeq+1, k.to)
		for low < end {
			cell := (low - k.from) / k.each
			until := min(end, k.from+(cell+1)*k.each)
			counts[cell] += until - low
			low, next = until, until
		}
	}
	return counts
}

// share is n/size on a scale from 0 (none) to 15 (all).
func share(n, size int64) byte {
	switch n {
	case 0:
		return 0
	case size:
		return 15
	}
	return byte(1 + n*14/size)
}

// find answers with the holders of machine IDs, or the machine IDs of a host.
func (s *Server) find(w http.ResponseWriter, r *http.Request, _ Credential) error {
	q, err := readQuery(r)
	if err != nil {
		return err
	}
	service := q.Get(leaseapi.ParamService)
	terms := s.o.Services.Of(service)
	from, to, err := readRange(q, terms.Range())
	if err != nil {
		return err
	}
	limit, err := readLimit(q, leaseapi.ParamLimit, leaseapi.MaxPage)
	if err != nil {
		return err
	}
	v, err := s.view(r.Context(), service)
	if err != nil {
		return err
	}
	now := s.o.NowMS()
	host := strings.ToLower(q.Get(leaseapi.ParamHost))
	out := leaseapi.Holders{Holders: []leaseapi.Holder{}, ListedAt: v.atMS}
	for i := v.first(from << terms.BitSeq); i < len(v.records) && v.records[i].Lease.Slot().Start < to<<terms.BitSeq; i++ {
		if v.records[i].Lease.Slot().End <= from<<terms.BitSeq || !strings.Contains(strings.ToLower(v.hosts[i]), host) {
			continue
		}
		if int64(len(out.Holders)) == limit {
			out.More = true
			break
		}
		out.Holders = append(out.Holders, holder(v.records[i], v.hosts[i], v.pids[i], now))
	}
	return answer(w, out)
}

// first is the position of the first record that may reach beyond the low bits. The
// largest slot of the view says how far before them it may begin.
func (v *view) first(low int64) int {
	return sort.Search(len(v.records), func(i int) bool { return v.records[i].Lease.Slot().Start > low-v.largest })
}

func holder(r provider.Record, host, pid string, nowMS int64) leaseapi.Holder {
	return leaseapi.Holder{
		MachineID: r.Lease.ID, BitID: r.Lease.BitID, BitSeq: r.Lease.BitSeq, Service: r.Service, Host: host, PID: pid,
		Created: r.Lease.Created, Expired: r.Lease.Expired, FreeAt: r.End, Released: r.Released, State: state(r, nowMS),
	}
}

func holders(records []provider.Record, nowMS int64) []leaseapi.Holder {
	out := make([]leaseapi.Holder, 0, len(records))
	for _, r := range records {
		out = append(out, holder(r, r.Meta["host"], r.Meta["pid"], nowMS))
	}
	return out
}
