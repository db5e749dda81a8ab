package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/model"
)

// details is the content of the objects of one Cluster.
type details struct {
	Domain    string       `json:"domain"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Found     bool         `json:"found"`              // there is a Cluster or a Tunnel
	Endpoint  string       `json:"endpoint,omitempty"` // of the Cluster
	Row       *summary.Row `json:"row,omitempty"`      // nil: the Cluster does not use Fairlead
}

// errNoName is the error of a request that names no Cluster.
var errNoName = errors.New("namespace and name must be given, as those of a Cluster")

// keyOf returns the Cluster that a request names. An invalid name is rejected here and never sent to the apiserver.
func keyOf(r *http.Request) (model.Key, error) {
	key := model.Key{Namespace: r.URL.Query().Get("namespace"), Name: r.URL.Query().Get("name")}
	if len(validation.IsDNS1123Label(key.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
		return key, errNoName
	}
	return key, nil
}

// streamCluster sends the content of the objects of a Cluster and the state of its hops at each change.
func (p *Page) streamCluster(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s, ctx, cancel := p.open(w, r)
	defer cancel()
	if r.Method == http.MethodHead {
		return
	}
	c, leave, err := p.attend(key)
	if err != nil {
		// A slot is free when a page is closed. Waiting clients retry at the interval at which a page is updated.
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(p.Timing.Check.Seconds()))))
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer leave()
	if s.begin() != nil {
		return
	}
	ticker := time.NewTicker(p.Timing.Beat)
	defer ticker.Stop()
	had := map[string]int{}
	for {
		next := c.next()
		for _, kind := range []string{eventObjects, eventHops} {
			data, serial, news := c.get(kind, had[kind])
			if !news {
				continue
			}
			if s.send(kind, "", data) != nil {
				return
			}
			had[kind] = serial
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if s.send("beat", "", beat{Now: p.Now().Unix()}) != nil {
				return
			}
		case <-next:
		}
	}
}

// objectsOf reads the objects of a Cluster and returns their content.
func (p *Page) objectsOf(ctx context.Context, key model.Key) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timing.Request)
	defer cancel()
	in, err := read(ctx, p.Objects, key)
	if err != nil {
		return nil, err
	}
	d := details{
		Domain:    string(p.Domain),
		Namespace: key.Namespace,
		Name:      key.Name,
		Found:     len(in.Clusters)+len(in.Tunnels)+len(in.Networks) > 0,
	}
	var ids []string
	for i := range in.Tunnels {
		if id := in.Tunnels[i].HeldID(); id != "" {
			ids = append(ids, id)
		}
	}
	if p.Live != nil && len(ids) > 0 {
		in.Live = p.Live(ctx, ids...)
	}
	d.Row = rowOf(in, p.Now())
	if len(in.Clusters) > 0 && in.Clusters[0].Spec.ControlPlaneEndpoint.IsValid() {
		d.Endpoint = in.Clusters[0].Spec.ControlPlaneEndpoint.String()
	}
	return json.Marshal(d)
}

// clusterIndex indexes RemoteNetworks in a cache by their Cluster.
const clusterIndex = "spec.clusterName"

// read reads the objects of a Cluster that exist: the Cluster, its RemoteNetworks and the Tunnels of all of these. The
// options select RemoteNetworks in a cache, where a namespace may have thousands.
func read(
	ctx context.Context, objects client.Reader, key model.Key, options ...client.ListOption,
) (in summary.Input, err error) {
	cluster, list := clusterv1.Cluster{}, v1alpha1.RemoteNetworkList{}
	if err := objects.Get(ctx, client.ObjectKey(key), &cluster); err == nil {
		in.Clusters = []clusterv1.Cluster{cluster}
	} else if !apierrors.IsNotFound(err) {
		return in, fmt.Errorf("reading Cluster: %w", err)
	}
	if err := objects.List(ctx, &list, append(options, client.InNamespace(key.Namespace))...); err != nil {
		return in, fmt.Errorf("listing RemoteNetworks: %w", err)
	}
	names := []string{key.Name}
	for i := range list.Items {
		if n := list.Items[i]; n.Spec.ClusterName == key.Name {
			in.Networks = append(in.Networks, n)
			names = append(names, n.Name+v1alpha1.NetworkTunnelSuffix)
		}
	}
	if len(in.Networks) > 0 {
		names = append(names, key.Name+v1alpha1.EgressTunnelSuffix)
	}
	for i, name := range names {
		tunnel := v1alpha1.Tunnel{}
		err := objects.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, &tunnel)
		if client.IgnoreNotFound(err) != nil {
			return in, fmt.Errorf("reading Tunnel: %w", err)
		}
		if err == nil && tunnel.OfCluster() == (i == 0) {
			in.Tunnels = append(in.Tunnels, tunnel)
		}
	}
	return in, nil
}
