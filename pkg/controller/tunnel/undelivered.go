package tunnel

import (
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// deniedRetry is the wait before a bootstrap Secret is written again after a denial. Nothing reports that a quota or a
// policy permits it.
const deniedRetry = 30 * time.Second

// undelivered stores the tokens that are on record and whose Secrets could not be written. The next attempt delivers
// the same tokens. A new token for each attempt would change the status of the Tunnel, and the event of that change
// would start the next attempt at once. Its zero value is ready, and it is safe for concurrent use.
type undelivered struct {
	mu sync.Mutex
	of map[client.ObjectKey]pending
}

// pending is what could not be delivered for one Tunnel; zero: nothing.
type pending struct {
	edge, report string              // tokens; empty: delivered
	denied       metav1.StatusReason // why the apiserver denies a write; empty: it does not
}

// problem returns the end of a condition's message; empty: no write is denied. The error itself may quote the Secret.
func (p pending) problem() string {
	if p.denied == "" {
		return ""
	}
	return fmt.Sprintf("; a bootstrap Secret cannot be written (%s): it is immutable, or a quota, a policy, a webhook or "+
		"the permissions of the controller deny the write", p.denied)
}

// get returns what could not be delivered for a Tunnel.
func (u *undelivered) get(key client.ObjectKey) pending {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.of[key]
}

// set stores what could not be delivered for a Tunnel.
func (u *undelivered) set(key client.ObjectKey, p pending) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p == (pending{}) {
		delete(u.of, key)
		return
	}
	if u.of == nil {
		u.of = map[client.ObjectKey]pending{}
	}
	u.of[key] = p
}

// forget removes a Tunnel that no longer exists.
func (u *undelivered) forget(key client.ObjectKey) { u.set(key, pending{}) }
