package kubeconfigs

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// TestClusterAPIWorksThroughTunnels proves that Cluster API creates, keeps, repairs, moves and removes workload
// clusters that it cannot dial.
func TestClusterAPIWorksThroughTunnels(t *testing.T) {
	proof.Need(t)
	t.Parallel()
	l, err := lab.New(t.Context(), lab.Options{TunnelDomain: string(domain), Machines: true, ControllerFlags: patient})
	proof.Start(t, l, err)
	members := []*member{
		newMember(l, "berlin", v1alpha1.KubeconfigModeSNI),
		newMember(l, "tokyo", v1alpha1.KubeconfigModeConnect),
	}
	if testing.Short() {
		restarted := part{"Cluster API restarts", func(t *testing.T) { clusterAPIRestarts(t, l, members) }}
		lives(t, "created", members, (*member).created, restarted)
		return
	}
	lives(t, "created", members, (*member).created)
	if t.Failed() {
		return
	}
	lives(t, "kept", members, (*member).kept, part{"boots that fail", func(t *testing.T) { bootsFail(t, l) }})
	t.Run("rotated without the webhook", func(t *testing.T) {
		withoutWebhook(t, l, func() { lives(t, "members", members, (*member).rotatesUnaided) })
	})
	lives(t, "rotated", members, (*member).rotates)
	if t.Failed() {
		return
	}
	other, err := l.NewSecond(
		t.Context(), lab.Options{TunnelDomain: string(secondDomain), Machines: true, ControllerFlags: patient},
	)
	second := proof.Start(t, other, err)
	var moved []*member
	t.Run("moved", func(t *testing.T) { moved = move(t, l, second, members) })
	if t.Failed() {
		return
	}
	lives(t, "ended", moved, (*member).ends)
}

// clusterAPIRestarts restarts Cluster API's managers as soon as the first machines answer. They then connect at once,
// instead of 30 s after their first, failed connection.
func clusterAPIRestarts(t *testing.T, l *lab.Lab, members []*member) {
	for _, m := range members {
		within(t, initialised, "", m.tunnelHasStatus(v1alpha1.ConditionAPIServerReachable, metav1.ConditionTrue))
	}
	must(t, l.RestartClusterAPI(t.Context()))
}

// patient makes the only controller keep its lease while the processors are busy, because it serves no webhook while it
// restarts. It also reports a silent machine earlier than by default.
var patient = []string{"--leader-elect-lease=15s", "--boot-report-after=" + reportAfter.String()}

// part is a test that runs at the same time.
type part struct {
	name string
	run  func(*testing.T)
}

// lives runs one part of all members' lives at the same time, and returns when all have completed it.
func lives(t *testing.T, name string, members []*member, run func(*member, *testing.T), beside ...part) {
	t.Run(name, func(t *testing.T) {
		for _, m := range members {
			beside = append(beside, part{string(m.mode), func(t *testing.T) { run(m, t) }})
		}
		for _, p := range beside {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				p.run(t)
			})
		}
	})
}

// initialised bounds how long Cluster API may take for the first machine of a workload cluster, on a machine with two
// cores.
const initialised = 8 * time.Minute

// dial tries to open a connection in a network.
func dial(ctx context.Context, in *netns.Namespace, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := in.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err
}
