package leaseserver

import (
	"context"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// listingKept is how long a list is kept for its further pages, so that the store does not
// list the pool again for each page.
const listingKept = 10 * time.Second

// listings are the lists whose pages are being fetched.
type listings struct {
	mu     sync.Mutex
	byPool map[string]*listing
}

// listing holds the records of a pool for listingKept.
type listing struct {
	began   time.Time
	records []provider.Record
}

// listing returns the pool's records; for a first page it asks the store.
func (s *Server) listing(ctx context.Context, service string, first bool) ([]provider.Record, error) {
	pool := s.o.Services.Of(service).Pool
	s.listings.mu.Lock()
	known := s.listings.byPool[pool]
	s.listings.mu.Unlock()
	if known != nil && !first {
		return known.records, nil
	}
	l := &listing{began: time.Now()}
	if err := s.called(ctx, "list", func(ctx context.Context) (err error) {
		l.records, err = s.listOf(ctx, service)
		return err
	}); err != nil {
		return nil, err
	}
	if len(l.records) > 1 { // otherwise there is no second page
		s.keepListing(pool, l)
	}
	return l.records, nil
}

func (s *Server) keepListing(pool string, l *listing) {
	s.listings.mu.Lock()
	defer s.listings.mu.Unlock()
	if s.listings.byPool == nil {
		s.listings.byPool = map[string]*listing{}
	}
	if other := s.listings.byPool[pool]; other != nil && other.began.After(l.began) {
		return // a newer list is being read, and its second page must not show older records
	}
	s.listings.byPool[pool] = l
	time.AfterFunc(listingKept, func() {
		s.listings.mu.Lock()
		defer s.listings.mu.Unlock()
		if s.listings.byPool[pool] == l {
			delete(s.listings.byPool, pool)
		}
	})
}

// listPage answers with one page of the records that the caller may see.
func (s *Server) listPage(w http.ResponseWriter, r *http.Request, who Credential, q url.Values) error {
	limit, err := readLimit(q, leaseapi.ParamLimit, leaseapi.MaxPage)
	if err != nil {
		return err
	}
	start, bitSeq, err := readCursor(q.Get(leaseapi.ParamAfter))
	if err != nil {
		return err
	}
	service, err := s.service(who, q.Get(leaseapi.ParamService))
	if err != nil {
		return err
	}
	records, err := s.listing(r.Context(), service, !q.Has(leaseapi.ParamAfter))
	if err != nil {
		return err
	}
	out := leaseapi.RecordsResponse{Records: []leaseapi.Record{}}
	from := sort.Search(len(records), func(i int) bool {
		slot := records[i].Lease.Slot()
		return slot.Start > start || slot.Start == start && records[i].Lease.BitSeq > bitSeq
	})
	for _, record := range records[from:] {
		name, ok := visible(who, record.Service)
		if !ok {
			continue
		}
		if int64(len(out.Records)) == limit {
			last := out.Records[limit-1].Record().Lease
			out.Next = strconv.FormatInt(last.Slot().Start, 10) + "." + strconv.Itoa(last.BitSeq)
			break
		}
		record.Service = name
		out.Records = append(out.Records, leaseapi.FromRecord(record))
	}
	return answer(w, out)
}

// readCursor parses the cursor of a page: the start of a slot, and its bit_seq.
func readCursor(text string) (start int64, bitSeq int, err error) {
	if text == "" {
		return -1, 0, nil
	}
	left, right, ok := strings.Cut(text, ".")
	start, startOK := wholeNumber(left)
	bits, bitsOK := wholeNumber(right)
	if !ok || !startOK || !bitsOK || bits < 0 || bits > 63 {
		return 0, 0, problem.New(problem.InvalidRequest, "after must be the next of the page before")
	}
	return start, int(bits), nil
}
