package progress

import (
	"slices"
	"sync"
	"time"
)

// maxMarks bounds the number of changes with recorded times.
const maxMarks = 1024

// Marks are the times of the last changes of the resources of one type that all gateways share, by the number of the
// change in their feed. It is safe for concurrent use.
type Marks struct {
	mu      sync.Mutex
	all     []mark // the newest at the end
	pending int64  // beginning of the change in progress; 0: none is
}

type mark struct {
	last uint64
	at   int64
}

// Begin records that a change begins now.
func (m *Marks) Begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = time.Now().UnixNano()
}

// End records the number of the last change in what Begin began.
func (m *Marks) End(last uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.all); n == 0 || m.all[n-1].last != last {
		m.all = append(m.all, mark{last, m.pending})
	}
	if len(m.all) >= 2*maxMarks {
		m.all = slices.Clone(m.all[maxMarks:])
	}
	m.pending = 0
}

// Since returns the time of the first change after one, in Unix ns; 0: it is no longer recorded.
func (m *Marks) Since(last uint64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.all, last+1, func(a mark, last uint64) int {
		switch {
		case a.last < last:
			return -1
		case a.last > last:
			return 1
		}
		return 0
	})
	switch {
	case i == len(m.all):
		return m.pending
	case i == 0 && len(m.all) >= maxMarks && m.all[0].last > last+1:
		return 0
	}
	return m.all[i].at
}

// When returns the time of a change; zero: it is no longer recorded.
func (m *Marks) When(number uint64) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.all, number, func(a mark, number uint64) int {
		switch {
		case a.last < number:
			return -1
		case a.last > number:
			return 1
		}
		return 0
	})
	if i == len(m.all) || i == 0 && len(m.all) >= maxMarks || m.all[i].at == 0 {
		return time.Time{}
	}
	return time.Unix(0, m.all[i].at)
}
