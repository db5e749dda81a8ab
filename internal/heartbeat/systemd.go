package heartbeat

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// ErrNoManager reports that NOTIFY_SOCKET is not set, so no service manager expects notifications.
var ErrNoManager = errors.New("NOTIFY_SOCKET is not set")

// Notify sends a state, such as READY=1, to systemd with the protocol of sd_notify(3). systemd waits for READY=1 to
// start a unit with Type=notify, and restarts a unit with WatchdogSec when it has received no WATCHDOG=1 for that long.
// Notify returns ErrNoManager if there is no service manager.
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return ErrNoManager
	}
	// A leading @ names an abstract socket, here and in Go.
	conn, err := net.Dial("unixgram", path) //nolint:gosec // the service manager sets the path
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

// watchdogInterval returns a third of WatchdogSec, so that one lost notification does no harm.
func watchdogInterval() time.Duration {
	micros, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || micros < 3 {
		return every
	}
	return time.Duration(micros) * time.Microsecond / 3
}
