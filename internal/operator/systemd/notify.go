package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifyTimeout limits the wait for a manager that does not read, which must not
// hold up the watchdog or a stop.
const notifyTimeout = time.Second

// Notify sends the assignments to the service manager, in one message. It reports
// whether there is a manager. It waits for notifyTimeout at most; the library's
// function waits for ever.
func Notify(assignments ...string) (bool, error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return false, nil
	}
	if err := send(path, strings.Join(assignments, "\n")); err != nil {
		return false, fmt.Errorf("cannot notify the service manager (NOTIFY_SOCKET): %w", err)
	}
	return true, nil
}

func send(path, message string) error {
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyTimeout)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(message))
	return err
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
