package heartbeat

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// ErrNoManager says that no service manager wants to be notified.
var ErrNoManager = errors.New("there is no NOTIFY_SOCKET")

// Notify tells systemd a state, such as READY=1, by the protocol of sd_notify(3). A unit with Type=notify waits for READY=1; one
// with WatchdogSec is restarted when WATCHDOG=1 does not come for so long.
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return ErrNoManager
	}
	conn, err := net.Dial("unixgram", path) //nolint:gosec // the service manager sets the path; a name that begins with @ is an abstract one, here as there
	if err != nil {
		return fmt.Errorf("notifying the service manager: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("notifying the service manager: %w", err)
	}
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notifying the service manager: %w", err)
	}
	return nil
}

// watchdogInterval is a third of WatchdogSec, so that one notification may be lost.
func watchdogInterval() time.Duration {
	micros, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || micros < 3 {
		return every
	}
	return time.Duration(micros) * time.Microsecond / 3
}
