package synthetic

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// poller watches idle tunnels instead of Go's own poller, which would need a goroutine for each.
type poller struct {
	epoll, stop int // stop is an eventfd in slot 0

	mu    sync.Mutex
	slots []*tunnel // by the number that epoll returns
	free  []int32
	over  bool
}

const idleEvents = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making an epoll: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("making an eventfd: %w", err)
	}
	p := &poller{epoll: epoll, stop: stop, slots: []*tunnel{nil}}
	return p, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN})
}

// run notifies tunnels until the poller is closed.
func (p *poller) run() {
	defer func() {
		_ = unix.Close(p.epoll)
		_ = unix.Close(p.stop)
	}()
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, event := range events[:max(n, 0)] {
			if event.Fd == 0 {
				return
			}
			p.mu.Lock()
			t := p.slots[event.Fd]
			p.mu.Unlock()
			if t != nil {
				go t.notify()
			}
		}
	}
}

// watch starts to watch a tunnel, which is notified once.
func (p *poller) watch(t *tunnel) error {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		t.slot, p.free = p.free[n-1], p.free[:n-1]
		p.slots[t.slot] = t
	} else {
		t.slot = int32(len(p.slots))
		p.slots = append(p.slots, t)
	}
	p.mu.Unlock()
	return p.control(unix.EPOLL_CTL_ADD, t)
}

// rearm watches a tunnel once more after it was notified.
func (p *poller) rearm(t *tunnel) error { return p.control(unix.EPOLL_CTL_MOD, t) }

// remove stops watching a tunnel. It may be called more than once.
func (p *poller) remove(t *tunnel) {
	p.mu.Lock()
	known := t.slot > 0 && p.slots[t.slot] == t
	if known {
		p.slots[t.slot] = nil
	}
	p.mu.Unlock()
	if !known {
		return
	}
	_ = p.control(unix.EPOLL_CTL_DEL, t)
	p.mu.Lock()
	// not earlier: an event of the old tunnel must not notify a new one in the same slot
	p.free = append(p.free, t.slot)
	p.mu.Unlock()
}

func (p *poller) control(operation int, t *tunnel) error {
	raw, err := t.conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over {
			failed = errors.New("the fleet is closed")
			return
		}
		failed = unix.EpollCtl(p.epoll, operation, int(fd), &unix.EpollEvent{Events: idleEvents, Fd: t.slot})
	})
	return errors.Join(err, failed)
}

func (p *poller) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil
	}
	p.over = true
	_, err := unix.Write(p.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}
