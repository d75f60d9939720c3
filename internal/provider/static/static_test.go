package static

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

const start = snowflake.DefaultEpochMS + 100_000_000

type clock struct{ ms int64 }

func (c *clock) now() int64 { return c.ms }

func mustParse(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	must.Succeed(t, err)
	return u
}

func open(t *testing.T, raw string) (*Provider, *clock) {
	t.Helper()
	c := &clock{start}
	p, err := FromStaticURL(mustParse(t, raw), c.now)
	must.Succeed(t, err)
	return p, c
}

func acquire(t *testing.T, p *Provider, req provider.AcquireRequest) lease.Lease {
	t.Helper()
	leases, err := p.Acquire(context.Background(), req)
	must.Succeed(t, err)
	if len(leases) != 1 {
		t.Fatalf("%d leases, want 1", len(leases))
	}
	must.Succeed(t, leases[0].Validate())
	return leases[0]
}

func release(p *Provider, l lease.Lease, at int64) error {
	return p.Release(context.Background(), providertest.SignedRelease(l, at))
}

func TestStaticGrants(t *testing.T) {
	p, c := open(t, "static:17?term=5m&bit_seq=9&epoch=2025-01-01T00:00:00Z")
	l := acquire(t, p, provider.AcquireRequest{ThroughputPerMS: 100_000})
	// Seeds 003-2-2, 003-4.1-1 and 003-5-3.
	if l.ID != 17 || l.Created != start || l.Term() != 300_000 || l.ReservedUntil != l.Expired+300_000 || l.BitID != 13 || l.BitSeq != 9 {
		t.Errorf("the lease is %+v", l)
	}
	c.ms += 270_000
	next := acquire(t, p, provider.AcquireRequest{})
	if next.ID != 17 || next.Created != c.ms || next.Secret == l.Secret {
		t.Errorf("the renewal is %+v", next)
	}
	info := p.Info()
	if info.Name != "static" || info.URL != "static:17" || info.Scope != provider.ScopeUnverified || info.Coordinated {
		t.Errorf("Info is %+v", info)
	}
}

func TestCreatedNeverGoesBack(t *testing.T) {
	p, c := open(t, "static:17")
	first := acquire(t, p, provider.AcquireRequest{})
	c.ms -= 3_600_000
	if l := acquire(t, p, provider.AcquireRequest{}); l.Created != first.Created {
		t.Errorf("after the clock stepped back created is %d, want %d", l.Created, first.Created)
	}
	c.ms = start + 1000
	l := acquire(t, p, provider.AcquireRequest{})
	must.Succeed(t, release(p, l, c.ms+500))
	c.ms -= 10
	if next := acquire(t, p, provider.AcquireRequest{}); next.Created != start+1501 {
		t.Errorf("after a release created is %d, want %d", next.Created, start+1501)
	}
}

func TestStaticRelease(t *testing.T) {
	p, c := open(t, "static:17")
	unknown := provider.DefaultTerms().Grant(17, start, "x")
	if err := release(p, unknown, start); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("never granted: %v", err)
	}
	first := acquire(t, p, provider.AcquireRequest{})
	second := acquire(t, p, provider.AcquireRequest{})
	if err := release(p, unknown, start); !errors.Is(err, provider.ErrBadSignature) {
		t.Errorf("forged: %v", err)
	}
	if err := release(p, second, start+30_001); !errors.Is(err, provider.ErrTimestampSkew) {
		t.Errorf("skewed: %v", err)
	}
	// The replaced one can be given back without touching the other.
	if err := release(p, first, start+20_000); err != nil {
		t.Error(err)
	}
	if l := acquire(t, p, provider.AcquireRequest{}); l.Created != start {
		t.Errorf("created is %d after a replaced lease was given back", l.Created)
	}
	for range 2 * remembered {
		second = acquire(t, p, provider.AcquireRequest{})
	}
	if err := release(p, first, start); !errors.Is(err, provider.ErrBadSignature) {
		t.Errorf("long replaced: %v", err)
	}
	for _, at := range []int64{start, start, start + 5, start + 60_000} { // again is no error, and changes nothing
		if err := release(p, second, at); err != nil {
			t.Error(err)
		}
	}
	c.ms = start + 1
	if l := acquire(t, p, provider.AcquireRequest{}); l.Created != start+1 {
		t.Errorf("created is %d, want %d", l.Created, start+1)
	}
}

func TestStaticRequestID(t *testing.T) {
	p, c := open(t, "static:17")
	req := provider.AcquireRequest{RequestID: "a"}
	l := acquire(t, p, req)
	if again := acquire(t, p, req); again != l {
		t.Errorf("the same request gave %v, then %v", l, again)
	}
	other := acquire(t, p, provider.AcquireRequest{RequestID: "b"})
	if _, err := p.Acquire(context.Background(), req); !errors.Is(err, provider.ErrConflict) {
		t.Errorf("replaced: %v", err)
	}
	c.ms = other.Expired
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{RequestID: "b"}); !errors.Is(err, provider.ErrConflict) {
		t.Errorf("ended: %v", err)
	}
	last := acquire(t, p, provider.AcquireRequest{RequestID: "c"})
	must.Succeed(t, release(p, last, c.ms))
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{RequestID: "c"}); !errors.Is(err, provider.ErrConflict) {
		t.Errorf("released: %v", err)
	}
}

func TestStaticRefusesToGrant(t *testing.T) {
	p, c := open(t, "static:17")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Acquire(cancelled, provider.AcquireRequest{}); !errors.Is(err, context.Canceled) || !errors.Is(err, provider.ErrNotSent) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{RequestID: strings.Repeat("x", 1000)}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("long request ID: %v", err)
	}
	c.ms = 0
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err == nil {
		t.Error("granted before the epoch")
	}
	c.ms = start
	p.Close()
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err == nil {
		t.Error("granted after Close")
	}
}

func host(addresses ...HostAddress) func() ([]HostAddress, error) {
	return func() ([]HostAddress, error) { return addresses, nil }
}

func at(index int, name, addr string) HostAddress {
	return HostAddress{Interface: name, Index: index, Addr: netip.MustParseAddr(addr)}
}

func TestIPChoosesAddress(t *testing.T) {
	addresses := host(
		at(4, "docker0", "172.17.0.1"), at(3, "eth1", "192.168.7.200"), at(2, "eth0", "fe80::1"), at(2, "eth0", "2001:db8::9"),
		at(1, "lo", "127.0.0.1"), at(2, "eth0", "169.254.1.1"), at(2, "eth0", "10.1.2.30"), at(2, "eth0", "10.1.2.3"),
	)
	for raw, want := range map[string]int64{
		"ip:":                             3,
		"ip:?interface=eth1":              200,
		"ip:?interface=eth1&bits=11":      7<<8&0x7ff | 200,
		"ip:?bits=4":                      3,
		"ip:?bits=13":                     2<<8 | 3,
		"ip:?bits=32&bit_ts=30&bit_seq=0": 10<<24 | 1<<16 | 2<<8 | 3,
		"ip:?interface=docker0&bit_seq=9": 1,
	} {
		p, err := FromIPURL(mustParse(t, raw), (&clock{start}).now, addresses)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if l := acquire(t, p, provider.AcquireRequest{}); l.ID != want { // seeds 003-2-2 and 003-4.2-1
			t.Errorf("%s: machine ID %d, want %d", raw, l.ID, want)
		}
	}
	p, err := FromIPURL(mustParse(t, "ip:"), nil, addresses)
	must.Succeed(t, err)
	if info := p.Info(); info.URL != "ip: (machine ID 3, the low 8 bits of 10.1.2.3 on eth0)" || info.Scope != provider.ScopeUnverified || info.Coordinated {
		t.Errorf("Info is %+v", info)
	}
}

func TestIPRefuses(t *testing.T) {
	none := host(at(1, "lo", "127.0.0.1"), at(2, "eth0", "fe80::1"), at(2, "eth0", "169.254.3.4"))
	some := host(at(2, "eth0", "10.1.2.3"))
	failing := func() ([]HostAddress, error) { return nil, errors.New("netlink is down") }
	for _, test := range []struct {
		url       string
		addresses func() ([]HostAddress, error)
		want      string
	}{
		{"ip:", none, "no interface that is up has an IPv4 address"},
		{"ip:", failing, "netlink is down"},
		{"ip:?interface=wlan0", some, `"wlan0" does not exist`},
		{"ip:?bits=0", some, "1 to 13 bits"},
		{"ip:?bits=14", some, "1 to 13 bits"},
		{"ip:?bits=x", some, "bits=x"},
		{"ip:?ids=1-2", some, `"ids"`},
		{"ip:eth0", some, "takes no address"},
	} { // seed 003-4.2-1
		if _, err := FromIPURL(mustParse(t, test.url), nil, test.addresses); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want %q", test.url, err, test.want)
		}
	}
}

func TestIPFollowsTheAddress(t *testing.T) {
	address := at(2, "eth0", "10.0.0.5")
	p, err := FromIPURL(mustParse(t, "ip:"), (&clock{start}).now, func() ([]HostAddress, error) { return []HostAddress{address}, nil })
	must.Succeed(t, err)
	first := acquire(t, p, provider.AcquireRequest{})
	address.Addr = netip.MustParseAddr("10.0.0.6")
	second := acquire(t, p, provider.AcquireRequest{})
	if first.ID != 5 || second.ID != 6 || !strings.Contains(p.Info().URL, "10.0.0.6") {
		t.Errorf("machine IDs %d, then %d; %s", first.ID, second.ID, p.Info().URL)
	}
	address.Addr = netip.MustParseAddr("127.0.0.1")
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err == nil {
		t.Error("granted without an address")
	}
	if err := release(p, second, start); err != nil {
		t.Errorf("a release needs no address: %v", err)
	}
}

// The kernel's own list can be read, with any content.
func TestHostAddresses(t *testing.T) {
	all, err := hostAddresses()
	must.Succeed(t, err)
	t.Log(all)
}

// What a provider lacks is an error.
func TestWhatAProviderLacks(t *testing.T) {
	p := None{"none"}
	if err := p.Init(t.Context(), ""); !errors.Is(err, errors.ErrUnsupported) || err.Error() != "the provider none: it needs no declaration" {
		t.Errorf("Init: %v", err)
	}
	if _, err := p.Fence(t.Context()); !errors.Is(err, errors.ErrUnsupported) || err.Error() != "the provider none: it is not fenced by hand" {
		t.Errorf("Fence: %v", err)
	}
}
