package envoy_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestOneOfThreeAPIServers has a workload cluster with three apiservers, and clients that connect all the time while
// the first of them fails and recovers.
func TestOneOfThreeAPIServers(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	var apis []*fakeAPIServer
	for i := range 3 {
		apis = append(apis, newFakeAPIServer(t, fmt.Sprint("api-", i), workload, hostname))
	}
	c1 := cluster(t, "c1", apis[1].at)
	c1.Others = []model.Endpoint{apis[2].at, apis[0].at}
	in := newInstallation(t, 1, c1)
	in.workload = workload
	edge := in.startDialling(t, c1, envoy.EdgeDial{APIServers: []model.Endpoint{apis[0].at}})
	works(t, in.getBySNI, in.gateways[0], hostname, "api-0")

	tests := []struct {
		name    string
		die     func(s *fakeAPIServer)
		mayFail int // of the requests that begin before the failure can be detected
	}{
		{"refuses connections", func(s *fakeAPIServer) { s.cut() }, 0},
		{"is gone without a word", func(s *fakeAPIServer) { s.vanish(t) }, 0},
		{"reports that it is not ready", func(s *fakeAPIServer) { s.ready.Store(http.StatusInternalServerError) }, 0},
		// Only a health check can detect this, because the edge cannot read the clients' TLS.
		{"accepts and says nothing", func(s *fakeAPIServer) { s.silent.Store(true) }, 100},
	}
	for _, tc := range tests {
		t.Run("the first "+tc.name, func(t *testing.T) {
			l := in.load(t, hostname)
			l.until(t, "api-0")
			died := time.Now()
			tc.die(apis[0])
			l.until(t, "api-1")
			l.more(t, 50) // 2.5 s
			known, before := time.Now(), retries(t, edge)
			l.more(t, 40)
			returned, after := time.Now(), retries(t, edge)
			apis[0].live(t)
			l.until(t, "api-0")
			l.stop()
			first, dead, back := l.count(died, known), l.count(known, returned), l.count(returned, time.Now())
			t.Logf("in the moment of failure: %v; while it is dead: %v; when it returns: %v", first, dead, back)
			if first.failed > tc.mayFail || dead.failed+back.failed > 0 {
				t.Errorf("want at most %d failed, and only in the moment of failure", tc.mayFail)
			}
			if after != before {
				t.Errorf("when it was known to be dead, it was tried %d times", after-before)
			}
			if got := l.from(known, returned); slices.Contains(got, "api-0") || !slices.Contains(got, "api-1") {
				t.Errorf("while it was dead %q answered, want api-1", got)
			}
		})
	}
	t.Run("requests fail over in order, and reach an apiserver that is not ready if none is ready", func(t *testing.T) {
		checkOrder(t, in, hostname, apis)
	})
}

// checkOrder stops one apiserver after the other.
func checkOrder(t *testing.T, in *installation, hostname string, apis []*fakeAPIServer) {
	t.Helper()
	l := in.load(t, hostname)
	for i, s := range apis[:2] {
		l.until(t, fmt.Sprint("api-", i))
		s.ready.Store(http.StatusInternalServerError)
	}
	l.until(t, "api-2")
	apis[2].ready.Store(http.StatusInternalServerError)
	begin := time.Now()
	l.more(t, 60)
	for _, s := range apis {
		s.ready.Store(http.StatusOK)
	}
	l.until(t, "api-0")
	l.stop()
	if c := l.count(begin, time.Now()); c.failed > 0 {
		t.Errorf("with none ready: %v, want none failed", c)
	}
}

// retries returns how often an edge has tried another apiserver.
func retries(t *testing.T, edge *envoytest.Envoy) (n int) {
	t.Helper()
	stats, err := edge.Admin(t.Context(), http.MethodGet, `/stats?filter=^cluster.apiserver_.*\.upstream_rq_retry$`)
	if err != nil {
		t.Fatal(err)
	}
	_, value, _ := strings.Cut(strings.TrimSpace(stats), ": ")
	if n, err = strconv.Atoi(value); err != nil {
		t.Fatalf("%q: %v", stats, err)
	}
	return n
}

const (
	// every is the interval between requests of a load.
	every = 50 * time.Millisecond
	// slow is noticeable for a client. Slow requests are counted and logged, but do not fail the test: the machine may
	// be busy.
	slow = 500 * time.Millisecond
	// patience is client-go's timeout of a TLS handshake. A request that takes longer has failed.
	patience = 10 * time.Second
)

type answer struct {
	begin time.Time
	took  time.Duration
	from  string
	err   error
}

// load is a stream of requests, each on its own connection.
type load struct {
	mu      sync.Mutex
	answers []answer
	cancel  context.CancelFunc
	done    chan struct{}
}

func (in *installation) load(t *testing.T, hostname string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		var group sync.WaitGroup
		defer group.Wait()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			group.Go(func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
				defer cancel()
				a := answer{begin: time.Now()}
				a.from, a.err = in.getBySNI(ctx, in.gateways[0], hostname)
				a.took = time.Since(a.begin)
				l.mu.Lock()
				l.answers = append(l.answers, a)
				l.mu.Unlock()
			})
		}
	}()
	t.Cleanup(cancel)
	return l
}

// until waits for ten consecutive answers of one apiserver.
func (l *load) until(t *testing.T, from string) {
	t.Helper()
	begin := time.Now()
	envoytest.Eventually(t, from+" answers", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		last := slices.DeleteFunc(
			slices.Clone(l.answers), func(a answer) bool { return a.begin.Before(begin) || a.err != nil },
		)
		if len(last) < 10 || slices.ContainsFunc(last[len(last)-10:], func(a answer) bool { return a.from != from }) {
			return errors.New("not yet")
		}
		return nil
	})
}

// more waits for some more answers.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	begin := time.Now()
	envoytest.Eventually(t, "more answers", func() error {
		if c := l.count(begin, time.Now()); c.all < n {
			return fmt.Errorf("%d of %d", c.all, n)
		}
		return nil
	})
}

// stop returns when every request has been answered or failed.
func (l *load) stop() {
	l.cancel()
	<-l.done
}

// from returns the apiservers that answered requests which began between begin and end, in order.
func (l *load) from(begin, end time.Time) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, a := range l.answers {
		if a.err == nil && !a.begin.Before(begin) && a.begin.Before(end) {
			all = append(all, a.from)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

type tally struct {
	all, failed, slow int
	longest           time.Duration // of the requests that did not fail
}

// String returns the numbers as text.
func (t tally) String() string {
	return fmt.Sprintf(
		"%d requests, %d failed, %d slow, the longest took %s", t.all, t.failed, t.slow, t.longest.Round(time.Millisecond),
	)
}

// count summarises the requests that began between from and to.
func (l *load) count(from, to time.Time) tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	var c tally
	for _, a := range l.answers {
		if a.begin.Before(from) || !a.begin.Before(to) {
			continue
		}
		c.all++
		if a.err != nil {
			c.failed++
			continue
		}
		c.longest = max(c.longest, a.took)
		if a.took > slow {
			c.slow++
		}
	}
	return c
}
