package doctor

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// roomNeeded is the free space without which a state directory or a store cannot be made.
const roomNeeded = 4 << 20

// Room judges the free space where a path is, or will be once it exists, and describes it.
func (r *Report) Room(step, path string) string {
	var st unix.Statfs_t
	for at := path; unix.Statfs(at, &st) != nil; at = filepath.Dir(at) {
		if at == filepath.Dir(at) {
			return "room is not known"
		}
	}
	free := uint64(st.Bavail) * uint64(st.Bsize)
	if free < roomNeeded {
		r.Fail(step, "Free some space on that file system.", "%s has %d KiB free", path, free>>10)
	}
	return fmt.Sprintf("%d MiB free", free>>20)
}

// Scope judges how far the provider's promise reaches. scope is provider.Info's.
func (r *Report) Scope(scope, provider string, inPod bool) {
	const step = "scope"
	switch {
	case scope == "shared":
		r.OK(step, "%s coordinates all hosts that use it", provider)
	case scope == "host" && inPod:
		r.Fail(step, "Name a provider that all pods share: kubernetes:, http(s)://, postgres://, redis:// or etcd://.", "%s coordinates the daemons that use this one file, and every pod has its own", provider)
	case scope == "host":
		r.OK(step, "%s coordinates the daemons of this host; a host or a container with a file of its own makes the same IDs", provider)
	case scope == "none":
		r.Warn(step, "Name a provider, unless IDs that only chance keeps apart will do.", "there is no provider: every ID is a fallback ID")
	default:
		r.Warn(step, "Make sure by other means that no two daemons have the same machine ID, or name a provider that coordinates.", "%s does not coordinate its users", provider)
	}
}
