package daemon

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// Many connections ask for everything at once: no ID comes twice, and those of
// one connection ascend, per service.
func TestManyConnections(t *testing.T) {
	const connections, requests = 64, 60
	r := newRig(t, func(s *setup) {
		s.source = clock.System{}
		s.services["orders"] = settings()
		for name, one := range s.services {
			one.SequenceStart, one.MaxThroughputPerMS = config.SequenceSpread, 4*256 // several leases
			s.services[name] = one
		}
	}).start()
	results := make([]map[string][]snowflake.ID, connections)
	errs := make([]error, connections)
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() { results[i], errs[i] = storm(t, r.path, i, requests) })
	}
	all.Wait()
	var ids []snowflake.ID
	for i := range connections {
		if errs[i] != nil {
			t.Errorf("connection %d: %v", i, errs[i])
		}
		for service, stream := range results[i] {
			if !slices.IsSorted(stream) {
				t.Errorf("connection %d: service %s does not ascend", i, service)
			}
			ids = append(ids, stream...)
		}
	}
	slices.Sort(ids)
	if n := len(slices.Compact(slices.Clone(ids))); n != len(ids) {
		t.Errorf("%d of %d IDs are different", n, len(ids))
	}
	if n := r.issued("default") + r.issued("orders"); n != uint64(len(ids)) {
		t.Errorf("%d IDs were made, and %d arrived", n, len(ids))
	}
	t.Logf("%d IDs", len(ids))
}

// storm asks for a mixture, some of it pipelined, and returns the IDs of each
// service in the order in which they came.
func storm(t *testing.T, path string, seed, requests int) (map[string][]snowflake.ID, error) {
	p, err := dial(t, path)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	services := []string{"default", "orders"}
	got := map[string][]snowflake.ID{}
	for round := 0; round < requests; round += 10 {
		var sent []byte
		for i := round; i < round+10; i++ {
			opts := options{"service": services[(i+seed)%2]}
			switch (i*7 + seed) % 5 {
			case 0, 1:
				sent = append(sent, request(i, "NextID", []any{opts})...)
			case 2:
				sent = append(sent, request(i, "NextIDs", []any{1 + (i*seed)%300, opts})...)
			case 3:
				opts["format"] = "string"
				sent = append(sent, request(i, "NextIDs", []any{3, opts})...)
			case 4:
				sent = append(sent, request(i, []string{"Ping", "Status", "UUID", "Nonsense"}[(i+seed)/2%4], []any{})...)
			}
		}
		if _, err := p.Write(sent); err != nil {
			return got, err
		}
		for i := round; i < round+10; i++ {
			r, err := p.read()
			if err != nil {
				return got, err
			}
			if r.id != uint32(i) || (r.err != nil && r.err.Code != wire.CodeUnknownMethod) {
				return got, fmt.Errorf("answer %d to request %d: %v", r.id, i, r.err)
			}
			service := services[(i+seed)%2]
			ids, err := stormIDs((i*7+seed)%5, r.result)
			if err != nil {
				return got, err
			}
			got[service] = append(got[service], ids...)
		}
	}
	return got, nil
}

func stormIDs(which int, raw msgpack.RawMessage) ([]snowflake.ID, error) {
	switch which {
	case 0, 1:
		id, err := idOf(raw)
		return []snowflake.ID{id}, err
	case 2:
		return idsOf(raw)
	case 3:
		var texts []string
		if err := msgpack.Unmarshal(raw, &texts); err != nil {
			return nil, err
		}
		var ids []snowflake.ID
		for _, text := range texts {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, err
			}
			ids = append(ids, snowflake.ID(n))
		}
		return ids, nil
	}
	return nil, nil
}
