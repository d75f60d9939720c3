//go:build !linux

package doctor

import "golang.org/x/sys/unix"

func describe(st *unix.Statfs_t) (kind string, readOnly bool) {
	name := make([]byte, 0, len(st.Fstypename))
	for _, c := range st.Fstypename {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	return string(name), uint32(st.Flags)&unix.MNT_RDONLY != 0
}

// ProbeClock knows nothing here.
func ProbeClock() Clock { return Clock{} }
