package systemd

import (
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notify sends the assignments to the service manager, in one message. It
// reports whether there is a manager that wants to hear.
func Notify(assignments ...string) (bool, error) {
	sent, err := daemon.SdNotify(false, strings.Join(assignments, "\n"))
	if err != nil {
		return sent, fmt.Errorf("the service manager cannot be told (NOTIFY_SOCKET): %w", err)
	}
	return sent, nil
}

// Assignments of Notify.
const (
	Ready    = daemon.SdNotifyReady
	Stopping = daemon.SdNotifyStopping
	alive    = daemon.SdNotifyWatchdog
)

// Reloading says that the configuration is read again, until Ready.
func Reloading() []string {
	return []string{daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec()}
}

// ExtendTimeout asks for so much time from now on before the manager loses
// patience with a start or a stop.
func ExtendTimeout(d time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds())
}

// Status is the line that systemctl status shows.
func Status(line string) string {
	return "STATUS=" + strings.Join(strings.Fields(line), " ") // an assignment ends with its line
}

// WatchdogInterval is after how long without Notify the manager kills the
// process; 0 = never. err says that the manager's wish is not understood.
func WatchdogInterval() (time.Duration, error) { return daemon.SdWatchdogEnabled(false) }
