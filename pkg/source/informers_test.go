package source_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/internal/heartbeat"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/source"
)

// TestAnInformerThatHangsIsReported blocks the watch of one kind at a time.
func TestAnInformerThatHangsIsReported(t *testing.T) {
	for kind, resource := range map[string]string{"Cluster": "clusters", "Tunnel": "tunnels"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t)
			config, beats, hold := server.Config(t), heartbeat.New(), make(chan struct{})
			ctx, cancel := context.WithCancel(context.Background())
			config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
				return transport(func(request *http.Request) (*http.Response, error) {
					response, err := inner.RoundTrip(request)
					if query := request.URL.Query(); err == nil && query.Has("watch") &&
						strings.HasSuffix(request.URL.Path, "/"+resource) {
						response.Body = heldBody{response.Body, hold, ctx.Done()}
					}
					return response, err
				})
			})
			kube, err := source.NewKube(config, source.KubeConfig{
				Domain: domain, Namespace: b.namespace, Publisher: publisher{b.updates, b.rollouts}, Log: b.log, Beats: beats,
			})
			if err != nil {
				t.Fatal(err)
			}
			kube.CompareEvery(200*time.Millisecond, 3*time.Second)
			var group sync.WaitGroup
			group.Go(func() {
				if err := kube.Run(ctx); err != nil {
					t.Errorf("running: %v", err)
				}
			})
			t.Cleanup(func() { cancel(); group.Wait() })
			cluster, _ := b.pair(t, "a", "a")
			b.await(t, map[string][]string{"a": none})
			if err := beats.Stuck(time.Now()); err != nil {
				t.Error(err)
			}
			close(hold)
			b.update(
				t, cluster, func() { cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.2", Port: 6443} },
			)
			b.pair(t, "b", "b")
			kubetest.Eventually(t, "a report of the informer", func() error {
				if err := fmt.Sprint(beats.Stuck(time.Now())); !strings.Contains(err, "the informer of kind "+kind+" is stuck") {
					return fmt.Errorf("got %s", err)
				}
				return nil
			})
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

// heldBody hands over nothing after hold is closed, until end is.
type heldBody struct {
	io.ReadCloser
	hold, end <-chan struct{}
}

// Read implements io.Reader.
func (b heldBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	select {
	case <-b.hold:
		<-b.end
		return 0, io.ErrUnexpectedEOF
	default:
		return n, err
	}
}
