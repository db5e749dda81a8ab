package kubeconfigs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// The writer of a Tunnel chooses the addresses that are dialled here. Therefore only addresses that the installation
// allows are dialled, few at a time and rarely after a rejection, and the result is only whether the proxy is usable.
const (
	// maxChecks bounds the concurrent checks of proxies. It is less than the number of workers, because each waits for its
	// own check.
	maxChecks = 4
	// checkRetry is the wait before a rejected proxy is checked again. It doubles each time, up to checkRarely.
	checkRetry, checkRarely = 10 * time.Second, 10 * time.Minute
)

// proxyChecks stores which https proxies were rejected.
type proxyChecks struct {
	now   func() time.Time
	slots chan struct{}

	mu      sync.Mutex
	refused map[client.ObjectKey]*refusedProxy // the last one of each Tunnel
}

type refusedProxy struct {
	address, why string
	asked        time.Time
	wait         time.Duration
}

func newProxyChecks(now func() time.Time) *proxyChecks {
	return &proxyChecks{now: now, slots: make(chan struct{}, maxChecks), refused: map[client.ObjectKey]*refusedProxy{}}
}

// begin reserves a slot to check an address. The error is reconciler.Later without a slot, or the rejection if the
// address was rejected a moment ago.
func (p *proxyChecks) begin(key client.ObjectKey, address string) (refused *refusedProxy, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.refused[key]; last != nil {
		period := checkRetry // one Tunnel must not probe many addresses
		if last.address == address {
			period = last.wait
		}
		switch left := reconciler.Remaining(last.asked, period, p.now()); {
		case left > 0 && last.address == address:
			return last, nil
		case left > 0:
			return nil, reconciler.Later{Wait: left}
		}
	}
	select {
	case p.slots <- struct{}{}:
		return nil, nil
	default:
		return nil, reconciler.Later{Wait: time.Second + rand.N(time.Second)}
	}
}

// end releases the slot and stores why a proxy was rejected; empty: it was not.
func (p *proxyChecks) end(key client.ObjectKey, address, why string) *refusedProxy {
	<-p.slots
	p.mu.Lock()
	defer p.mu.Unlock()
	if why == "" {
		delete(p.refused, key)
		return nil
	}
	now := &refusedProxy{address: address, why: why, asked: p.now(), wait: checkRetry}
	if last := p.refused[key]; last != nil && last.address == address {
		now.wait = min(2*last.wait, checkRarely)
	}
	p.refused[key] = now
	return now
}

func (p *proxyChecks) forget(key client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.refused, key)
}

// checkProxy rejects a proxy that client-go could not use: it verifies the proxy like the apiserver, with the CA of the
// kubeconfig and its tls-server-name. A proxy that has passed the check is kept while it does not answer, and while the
// kubeconfig is missing or cannot be read: the webhook then writes it into the next one. Any other one must not be
// recorded, because it would count as checked. The error is reconciler.Later.
func (r *Reconciler) checkProxy(ctx context.Context, v *decision, o objects.Group) error {
	known := o.Tunnel.Status.Kubeconfig.Mode == v.record.Mode && o.Tunnel.Status.Kubeconfig.ProxyURL == v.record.ProxyURL
	if o.Kubeconfig == nil {
		if !known { // there is no CA to verify it with
			v.refuse(v1alpha1.ReasonWaitingForSecret, waitingForSecret(o))
		}
		return nil
	}
	entry, err := v.applied(o)
	if err != nil {
		if !known {
			v.refuse(v1alpha1.ReasonInvalidKubeconfig, err.Error())
		}
		return nil //nolint:nilerr // it is said where it is written
	}
	address := o.Tunnel.Spec.Kubeconfig.Proxy.Address
	leg := proxyLeg{tlsLeg{address: address, name: entry.TLSServerName, protocols: []string{"h2", "http/1.1"}}}
	if leg.name == "" {
		leg.name, _, _ = net.SplitHostPort(address)
	}
	leg.trust(entry)
	refusal, err := r.checks.begin(o.Key, address)
	var later reconciler.Later
	switch {
	case errors.As(err, &later) && known:
		v.again = min(v.again, later.Wait)
		return nil
	case err != nil:
		return err
	case refusal == nil:
		if refusal = r.checks.end(o.Key, address, r.proof(ctx, leg, known)); refusal == nil {
			return nil
		}
	}
	at := refusal.asked.Add(refusal.wait)
	v.again = min(v.again, max(at.Sub(r.Now()), 0)+time.Second)
	v.refuse(v1alpha1.ReasonInvalidProxy, fmt.Sprintf("spec.kubeconfig.proxy.address: %q: %s. client-go verifies an "+
		"https proxy with the CA of the workload cluster "+
		"and the name in the kubeconfig: give the proxy a certificate of that CA with that name, without HTTP/2, or use "+
		"mode http-proxy in a network that you trust. It is dialled again at %s",
		address, refusal.why, at.UTC().Format(time.RFC3339)))
	return nil
}

// applied returns the entry of a kubeconfig as it would be written.
func (v *decision) applied(o objects.Group) (*api.Cluster, error) {
	after := o.Kubeconfig.DeepCopy()
	if _, err := kubeconfig.Apply(after, o.Key.Name, v.target); err != nil {
		return nil, err
	}
	_, entry, err := kubeconfig.Load(after, o.Key.Name)
	return entry, err
}

// notProved is the whole message about a rejected proxy. The details would tell the writer of a Tunnel what is at an
// address of their choice.
const notProved = "the controller found no https proxy there that the workload cluster's CA verifies, " +
	"or must not dial it: the operator of " +
	"Fairlead allows networks by --dial-networks of the controller, whose log has the cause"

// proof dials a proxy and returns why it is rejected; empty: it is not. Only the log has the details, because it
// belongs to the installation.
func (r *Reconciler) proof(ctx context.Context, leg proxyLeg, known bool) string {
	switch {
	case r.rule.may(leg.address):
	case known: // it passed when it was allowed, and its clients need it
		return ""
	default:
		return notProved
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := r.handshake(ctx, leg)
	var unverified *tls.CertificateVerificationError
	if err == nil || (known && !errors.As(err, &unverified) && !errors.Is(err, errHTTP2)) {
		return ""
	}
	r.Log.Info("https proxy is rejected", "address", leg.address, "name", leg.name, "error", err)
	return notProved
}
