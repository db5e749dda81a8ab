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
	cluster, tunnel, err := read(ctx, p.Objects, key)
	if err != nil {
		return nil, err
	}
	d := details{
		Domain:    string(p.Domain),
		Namespace: key.Namespace,
		Name:      key.Name,
		Found:     cluster != nil || tunnel != nil,
	}
	var live *summary.Live
	if p.Live != nil && tunnel != nil && tunnel.HeldID() != "" {
		live = p.Live(ctx, tunnel.HeldID())
	}
	d.Row = rowOf(cluster, tunnel, live, p.Now())
	if cluster != nil && cluster.Spec.ControlPlaneEndpoint.IsValid() {
		d.Endpoint = cluster.Spec.ControlPlaneEndpoint.String()
	}
	return json.Marshal(d)
}

// read reads the objects of a Cluster; missing ones are nil.
func read(ctx context.Context, objects client.Reader, key model.Key) (*clusterv1.Cluster, *v1alpha1.Tunnel, error) {
	cluster, tunnel := &clusterv1.Cluster{}, &v1alpha1.Tunnel{}
	if err := objects.Get(ctx, client.ObjectKey(key), cluster); apierrors.IsNotFound(err) {
		cluster = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading Cluster: %w", err)
	}
	if err := objects.Get(ctx, client.ObjectKey(key), tunnel); apierrors.IsNotFound(err) {
		tunnel = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading Tunnel: %w", err)
	}
	if tunnel != nil && !tunnel.OfCluster() {
		tunnel = nil
	}
	return cluster, tunnel, nil
}
