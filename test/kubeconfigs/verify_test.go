package kubeconfigs

import (
	"context"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
)

// TestClusterAPI proves that Cluster API makes, keeps, repairs, moves and removes workload clusters that it can't dial.
func TestClusterAPI(t *testing.T) {
	skipUnlessPossible(t)
	t.Parallel()
	l, err := lab.New(t.Context(), lab.Options{TunnelDomain: string(domain), Machines: true, ControllerFlags: patient})
	start(t, l, err)
	members := []*member{
		newMember(l, "berlin", v1alpha1.KubeconfigModeSNI),
		newMember(l, "tokyo", v1alpha1.KubeconfigModeConnect),
	}
	lives(t, "created", members, (*member).created)
	if testing.Short() || t.Failed() {
		return
	}
	lives(t, "kept", members, (*member).kept)
	t.Run("rotated without the webhook", func(t *testing.T) {
		withoutWebhook(t, l, func() { lives(t, "members", members, (*member).rotatesUnaided) })
	})
	lives(t, "rotated", members, (*member).rotates)
	if t.Failed() {
		return
	}
	other, err := l.NewSecond(t.Context(), lab.Options{TunnelDomain: string(secondDomain), Machines: true, ControllerFlags: patient})
	second := start(t, other, err)
	var moved []*member
	t.Run("moved", func(t *testing.T) { moved = move(t, l, second, members) })
	if t.Failed() {
		return
	}
	that(t, "Cluster API removes a worker's Node through the tunnel when its Machine goes", moved[1].workerLeaves)
	that(t, "Cluster API removes a whole workload cluster, and nothing of it is left", moved[1].isDeleted)
	that(t, "opting out gives the kubeconfig back as KCP wrote it", moved[0].optsOut)
}

// patient lets the only controller keep its lease while the processors are busy: one that starts again answers no webhook.
var patient = []string{"--leader-elect-lease=15s"}

// lives runs a part of all members' lives at the same time, and returns when all are through it.
func lives(t *testing.T, part string, members []*member, run func(*member, *testing.T)) {
	t.Run(part, func(t *testing.T) {
		for _, m := range members {
			t.Run(string(m.mode), func(t *testing.T) {
				t.Parallel()
				run(m, t)
			})
		}
	})
}

// initialised bounds how long Cluster API may take for the first machine of a workload cluster, on a machine with two cores.
const initialised = 8 * time.Minute

// dial tries to open a connection in a network.
func dial(ctx context.Context, in *lab.Namespace, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := in.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err
}
