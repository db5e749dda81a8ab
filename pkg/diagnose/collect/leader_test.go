package collect

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lease is a Lease that its holder renews before each read but the first, if it lives.
type lease struct {
	client.Reader
	at    time.Time
	lives bool
	reads int
}

// Get implements client.Reader.
func (l *lease) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if l.reads++; l.reads > 1 && l.lives {
		l.at = l.at.Add(2 * time.Second)
	}
	spec := &into.(*coordinationv1.Lease).Spec
	spec.HolderIdentity, spec.LeaseDurationSeconds = ptr.To("controller-0"), ptr.To[int32](5)
	spec.RenewTime = ptr.To(metav1.NewMicroTime(l.at))
	return nil
}

// TestALeaderByAWrongClock: whether a controller leads is not decided by the clock of this machine.
func TestALeaderByAWrongClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		renewed time.Duration // ago, by the clock of this machine
		lives   bool
		reads   int
	}{
		"it has just renewed it":              {0, true, 1},
		"a clock that is a minute ahead":      {time.Minute, true, 2},
		"a clock that is a minute behind":     {-time.Minute, true, 2},
		"it was last renewed a minute ago":    {time.Minute, false, 2},
		"the same, by a clock that is behind": {-time.Second * 30, false, 2},
		"it was last renewed an hour ago":     {time.Hour, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &lease{at: now.Add(-tc.renewed), lives: tc.lives}
			got := ReadLeader(t.Context(), l, "fairlead-system", now)
			if !got.Known || got.Alive != tc.lives || l.reads != tc.reads {
				t.Errorf("got %+v after %d reads", got, l.reads)
			}
		})
	}
}
