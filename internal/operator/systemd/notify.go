package systemd

import (
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notify sends the assignments to the service manager, in one message. It reports
// whether there is a manager.
func Notify(assignments ...string) (bool, error) {
	told, err := daemon.SdNotify(false, strings.Join(assignments, "\n"))
	if err != nil {
		return false, fmt.Errorf("cannot notify the service manager (NOTIFY_SOCKET): %w", err)
	}
	return told, nil
}

// Assignments of Notify.
const (
	Ready    = daemon.SdNotifyReady
	Stopping = daemon.SdNotifyStopping
	alive    = daemon.SdNotifyWatchdog
)

// Reloading announces a reload, which Ready ends.
func Reloading() []string {
	return []string{daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec()}
}

// ExtendTimeout extends the manager's time limit of a start or a stop to d from now.
func ExtendTimeout(d time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds())
}

// Status is the line that systemctl status shows.
func Status(line string) string {
	return "STATUS=" + strings.Join(strings.Fields(line), " ") // an assignment ends with its line
}

// WatchdogInterval is the time without a message after which the manager kills the
// process; 0 = never. err reports an invalid variable of the manager.
func WatchdogInterval() (time.Duration, error) { return daemon.SdWatchdogEnabled(false) }
