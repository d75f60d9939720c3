package static

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/provider"
)

// defaultIPBits is how many low bits of the address make the machine ID: the
// host part of a /24.
const defaultIPBits = 8

// ipParams returns the parameters that an ip: URL takes.
func ipParams() []string { return append(staticParams(), "bits", "interface") }

// HostAddress is an IPv4 address that the host has.
type HostAddress struct {
	Interface string
	Index     int // the kernel's number of the interface
	Addr      netip.Addr
}

// FromIPURL opens ip:. It fails when the host has no IPv4 address to take the
// machine ID from. addresses lists the host's addresses; nil means the kernel's
// interfaces that are up.
//
// The address is looked up again at each acquire, because the address plan is
// the promise that this provider rests on: a host that has been given another
// address must not keep the machine ID of the former one.
func FromIPURL(u *url.URL, nowMS func() int64, addresses func() ([]HostAddress, error)) (*Provider, error) {
	q, err := connurl.ParseQuery(u.RawQuery, ipParams())
	if err != nil {
		return nil, err
	}
	if u.Opaque != "" || u.Host != "" || u.Path != "" {
		return nil, errors.New("ip: takes no address; name an interface with ip:?interface=NAME")
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return nil, err
	}
	bits := defaultIPBits
	if v := q.Get("bits"); q.Has("bits") {
		if bits, err = strconv.Atoi(v); err != nil {
			return nil, fmt.Errorf("bits=%s: write a whole number", v)
		}
	}
	if most := min(32, terms.BitID-1); bits < 1 || bits > most {
		return nil, fmt.Errorf("bits=%d: the layout %v leaves room for 1 to %d bits of the address", bits, terms.Layout(), most)
	}
	if addresses == nil {
		addresses = hostAddresses
	}
	locate := func() (place, error) {
		all, err := addresses()
		if err != nil {
			return place{}, fmt.Errorf("ip: the host's network interfaces cannot be listed: %w", err)
		}
		a, err := chooseAddress(all, q.Get("interface"))
		if err != nil {
			return place{}, err
		}
		id := lowBits(a.Addr, bits)
		return place{id, fmt.Sprintf("ip: (machine ID %d, the low %d bits of %s on %s)", id, bits, a.Addr, a.Interface)}, nil
	}
	here, err := locate()
	if err != nil {
		return nil, err
	}
	return newProvider("ip", here, terms, nowMS, locate), nil
}

// lowBits is the low bits of an IPv4 address as a number.
func lowBits(a netip.Addr, bits int) int64 {
	b := a.As4()
	v := int64(b[0])<<24 | int64(b[1])<<16 | int64(b[2])<<8 | int64(b[3])
	return v & (1<<bits - 1)
}

// chooseAddress takes the first usable address in the order of interface
// number, then address, so that the same host comes to the same result after a
// restart. Loopback, link-local and other addresses that do not tell hosts
// apart are not usable. Interfaces are numbered as they appear, which puts
// network cards before the bridges of container engines.
func chooseAddress(all []HostAddress, onInterface string) (HostAddress, error) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b HostAddress) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), a.Addr.Compare(b.Addr))
	})
	for _, a := range all {
		if a.Addr.Is4() && a.Addr.IsGlobalUnicast() && (onInterface == "" || a.Interface == onInterface) {
			return a, nil
		}
	}
	if onInterface != "" {
		return HostAddress{}, fmt.Errorf("ip: the interface %q does not exist, is down, or has no IPv4 address", onInterface)
	}
	return HostAddress{}, errors.New("ip: no interface that is up has an IPv4 address other than loopback and link-local; use static:ID instead")
}

// hostAddresses lists the addresses of all interfaces that are up.
func hostAddresses() ([]HostAddress, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []HostAddress
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", i.Name, err)
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				all = append(all, HostAddress{Interface: i.Name, Index: i.Index, Addr: prefix.Addr().Unmap()})
			}
		}
	}
	return all, nil
}
