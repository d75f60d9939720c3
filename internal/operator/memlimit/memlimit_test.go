package memlimit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestOf(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no control groups": {nil, Default},
		"version 2": {map[string]string{"proc/self/cgroup": "0::/system.slice/kazahanad.service\n",
			"sys/fs/cgroup/system.slice/kazahanad.service/memory.max": "268435456\n"},
			256 << 20},
		"version 2, without a limit": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, Default},
		"the group above has less": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "2000\n",
			"sys/fs/cgroup/a/memory.high": "1000\n"}, 1000},
		"a unit of systemd": {map[string]string{"proc/self/cgroup": "0::/system.slice/kazahanad.service\n",
			"sys/fs/cgroup/system.slice/kazahanad.service/memory.high": "1073741824\n",
			"sys/fs/cgroup/system.slice/kazahanad.service/memory.max":  "1342177280\n"}, 1 << 30},
		"a container's own root": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000},
		"version 1": {map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n", "sys/fs/cgroup/memory.max": "1\n"}, 1000},
		"version 1, without a limit": {map[string]string{"proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, Default},
		"nonsense": {map[string]string{"proc/self/cgroup": "x\n0::/../..\n", "sys/fs/cgroup/memory.max": "-1\n"}, Default},
	} {
		root := t.TempDir()
		for path, text := range test.files {
			path = filepath.Join(root, path)
			must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
		}
		if got := Of(os.DirFS(root)); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
