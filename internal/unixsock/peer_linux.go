package unixsock

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

func peerCredentials(fd int) (Peer, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, err
	}
	peer := Peer{
		PID: int(c.Pid), UID: c.Uid, GID: c.Gid,
		UnmappedUID: users().unmapped(c.Uid), UnmappedGID: groups().unmapped(c.Gid),
	}
	if peer.Groups, err = peerGroups(fd, usualGroups); err != nil {
		return Peer{}, err
	}
	peer.Groups = slices.DeleteFunc(peer.Groups, groups().unmapped)
	return peer, nil
}

// usualGroups is the room for groups that most users do not need.
const usualGroups = 32

// peerGroups are the supplementary groups that the peer had when it connected; none where
// the kernel does not tell. room is the number of groups that it makes room for at first.
func peerGroups(fd, room int) ([]uint32, error) {
	for {
		found := make([]uint32, room)
		size := uint32(4 * room)
		_, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(found))), uintptr(unsafe.Pointer(&size)), 0)
		switch code {
		case 0:
			return found[:size/4], nil
		case unix.ERANGE: // size is what they need
			room = int(size / 4)
		case unix.ENODATA, unix.ENOPROTOOPT, unix.EINVAL: // the peer has none, or the kernel is old or another
			return nil, nil
		default:
			return nil, code
		}
	}
}

var (
	users  = sync.OnceValue(func() namespace { return namespaceOf("/proc/self/uid_map", "/proc/sys/kernel/overflowuid") })
	groups = sync.OnceValue(func() namespace { return namespaceOf("/proc/self/gid_map", "/proc/sys/kernel/overflowgid") })
)

// namespace is what this process's user namespace knows of users, or of groups.
type namespace struct {
	whole    bool   // it has all IDs, as the system's first one does
	overflow uint32 // stands for the IDs that it has not
}

func namespaceOf(mapFile, overflowFile string) namespace {
	mapped, _ := os.ReadFile(mapFile) // without /proc nothing is known, so that overflow is no name
	overflow, _ := os.ReadFile(overflowFile)
	return parseNamespace(string(mapped), string(overflow))
}

// parseNamespace reads the lines "inside outside length" of a map.
func parseNamespace(mapped, overflow string) namespace {
	n := namespace{overflow: 65534}
	known := uint64(0)
	for line := range strings.Lines(mapped) {
		if fields := strings.Fields(line); len(fields) == 3 {
			length, _ := strconv.ParseUint(fields[2], 10, 32)
			known += length
		}
	}
	n.whole = known >= math.MaxUint32 // the last ID stands for none
	if id, err := strconv.ParseUint(strings.TrimSpace(overflow), 10, 32); err == nil {
		n.overflow = uint32(id)
	}
	return n
}

// unmapped reports whether the ID may stand for another that the namespace does not know.
func (n namespace) unmapped(id uint32) bool { return !n.whole && id == n.overflow }
