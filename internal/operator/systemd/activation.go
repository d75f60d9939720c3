package systemd

import (
	"fmt"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/kazahana/kazahana/internal/unixsock"
)

// Socket takes over the socket that the service manager opened, or returns nil if
// there is none.
func Socket() (*unixsock.Listener, error) { return only(activation.Files(true)) }

func only(files []*os.File) (*unixsock.Listener, error) {
	if len(files) == 0 {
		return nil, nil
	}
	if len(files) > 1 {
		var names []string
		for _, f := range files {
			names = append(names, f.Name())
			_ = f.Close()
		}
		return nil, fmt.Errorf("socket activation: %d descriptors were given (%s), and the daemon serves one Unix socket: leave one ListenStream=/PATH in the socket unit",
			len(files), strings.Join(names, ", "))
	}
	l, err := unixsock.Inherit(files[0])
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	return l, nil
}
