package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// pods calls a function for each Pod of the installation and of the edges' Deployment, and waits after each.
func (w *World) pods(t *testing.T, f func(*cluster.Cluster, *corev1.Pod)) {
	t.Helper()
	for _, of := range []struct {
		cluster   *cluster.Cluster
		namespace string
	}{{w.management, system}, {w.workload, edges}} {
		var list corev1.PodList
		must(t, of.cluster.Client.List(t.Context(), &list, client.InNamespace(of.namespace)))
		if len(list.Items) < 2 {
			t.Fatalf("namespace %s has %d Pods", of.namespace, len(list.Items))
		}
		for i := range list.Items {
			f(of.cluster, &list.Items[i])
			w.waitReady(t)
		}
	}
}

// evictTime bounds an eviction, which a PodDisruptionBudget rejects while other Pods start.
const evictTime = 5 * time.Minute

func proveEvictions(t *testing.T, w *World) {
	w.oldCA = w.trusted(t)
	w.run(t, w.management, "fairlead ca rotate")
	w.disturb(t, "evictions", 4, func() {
		w.pods(t, func(c *cluster.Cluster, pod *corev1.Pod) {
			must(t, proc.Wait(t.Context(), evictTime, func(ctx context.Context) error {
				err := c.Client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{})
				return client.IgnoreNotFound(err)
			}))
			waitGone(t, c, pod)
		})
	})
}

// waitGone waits until a Pod has been replaced.
func waitGone(t *testing.T, c *cluster.Cluster, pod *corev1.Pod) {
	t.Helper()
	must(t, proc.Wait(t.Context(), evictTime, func(ctx context.Context) error {
		now := &corev1.Pod{}
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), now)
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			return nil
		}
		return fmt.Errorf("Pod %s is still there: %w", pod.Name, err)
	}))
}

func proveDeletions(t *testing.T, w *World) {
	w.disturb(t, "deletions", 4, func() {
		w.pods(t, func(c *cluster.Cluster, pod *corev1.Pod) {
			must(t, c.Client.Delete(t.Context(), pod))
			waitGone(t, c, pod)
		})
	})
}

func proveScaling(t *testing.T, w *World) {
	for _, replicas := range []string{"3", "2"} {
		w.disturb(t, "scale_to_"+replicas, 2, func() {
			w.upgrade(t, "--set gateway.replicas="+replicas)
			w.waitReady(t)
			eventually(t, w.connected(t, 4))
		})
	}
}

// newName is another name of the public address.
const newName = "edges.tunnels.example.com"

// proveNewAddress restarts the edge of the machine when only the new address is left: it finds the gateways by what it
// has stored, although its bootstrap file has the old address.
func proveNewAddress(t *testing.T, w *World) {
	w.namePublic(t, newName)
	w.changeAddress(t, "address", newName+":443")
	w.management.SetHost(publicName)
	w.workload.SetHost(publicName)
	defer w.namePublic(t, publicName)
	for _, unit := range w.units {
		must(t, unit.Terminate(time.Minute))
		defer unit.Resume()
	}
	began := time.Now()
	eventually(t, w.connected(t, 3))
	for _, unit := range w.units {
		unit.Resume()
	}
	eventually(t, w.connected(t, 4, machineName))
	measured("address_machine_back_s", time.Since(began).Seconds())
	w.namePublic(t, publicName)
	w.changeAddress(t, "address_back", "")
}

// changeAddress sets the value publicAddress, and waits until all gateways and edges have it.
func (w *World) changeAddress(t *testing.T, name, address string) {
	t.Helper()
	before, err := w.profile(t.Context())
	must(t, err)
	w.disturb(t, name, 4, func() {
		w.upgrade(t, "--set publicAddress="+address)
		w.waitReady(t)
		must(t, proc.Wait(t.Context(), rolloutTime, func(ctx context.Context) error {
			now, err := w.profile(ctx)
			if err == nil && now == before {
				err = errors.New("the rollout has not begun")
			}
			return err
		}))
	})
}

// rolloutTime bounds a rollout in two waves.
const rolloutTime = 2*soak + 5*time.Minute

// profile returns the name of the profile of all gateways and edges, or an error during a rollout. It ignores the exit
// code, which is 1 while an Envoy has not answered.
func (w *World) profile(ctx context.Context) (string, error) {
	out, stderr, err := w.try(ctx, w.management, "fairlead config sync --output=json")
	var result struct {
		Rollout struct{ Phase, Current string }
	}
	if invalid := json.Unmarshal([]byte(out), &result); invalid == nil {
		err = nil
	}
	if err == nil && (result.Rollout.Phase != "none" || result.Rollout.Current == "") {
		err = fmt.Errorf("the rollout is %+v", result.Rollout)
	}
	if err != nil {
		return "", fmt.Errorf("fairlead config sync: %w: %s%s", err, out, stderr)
	}
	return result.Rollout.Current, nil
}

// rotationTime bounds a rotation: three phases of a lifetime of a certificate and a quarter, and some time for each.
const rotationTime = 3*leafLife*5/4 + 5*time.Minute

// rotating finds the phases of a rotation in the output of fairlead ca status.
var rotating = regexp.MustCompile(`introduce:|move:|retire:`)

// trusted returns the certificates of the CAs that the installation trusts.
func (w *World) trusted(t *testing.T) string {
	t.Helper()
	return ask(t, w.management, "--namespace="+system, "get", "configmap/fairlead-installation",
		`--output=jsonpath={.data.ca\.crt}`)
}

// bootstrapName is the Secret with the bootstrap file in the workload cluster.
const bootstrapName = "fairlead-edge-bootstrap"

// proveOldSecret replaces the Pods of the edges' Deployment after the rotation. The Secret in their cluster is as it
// was before, so its only CA is the one that no server uses any longer.
func proveOldSecret(t *testing.T, w *World) {
	var secret corev1.Secret
	must(t, w.workload.Client.Get(t.Context(), client.ObjectKey{Namespace: edges, Name: bootstrapName}, &secret))
	var file struct{ CA string }
	must(t, yaml.Unmarshal(secret.Data["bootstrap.yaml"], &file))
	if strings.TrimSpace(file.CA) != w.oldCA {
		t.Fatalf("the bootstrap file has not the CA before the rotation alone:\n%s", file.CA)
	}
	var pods corev1.PodList
	must(t, w.workload.Client.List(t.Context(), &pods, client.InNamespace(edges)))
	if len(pods.Items) != 2 {
		t.Fatalf("%d edges run as Pods, not 2", len(pods.Items))
	}
	w.disturb(t, "old_secret", 4, func() {
		for i := range pods.Items {
			must(t, w.workload.Client.Delete(t.Context(), &pods.Items[i]))
			waitGone(t, w.workload, &pods.Items[i])
			w.waitReady(t)
		}
	})
	eventually(t, w.connected(t, 4))
}

// proveRotation waits for the end of the rotation that began with the evictions, under requests.
func proveRotation(t *testing.T, w *World) {
	w.disturb(t, "rotation", 0, func() {
		must(t, proc.Wait(t.Context(), rotationTime, func(ctx context.Context) error {
			out, stderr, err := w.try(ctx, w.management, "fairlead ca status")
			if err != nil || rotating.MatchString(out) {
				return fmt.Errorf("fairlead ca status: %w: %s%s", err, out, stderr)
			}
			return nil
		}))
		time.Sleep(5 * time.Second) // with the old CA gone
	})
	if now := w.trusted(t); strings.Count(now, "BEGIN") != 1 || now == w.oldCA {
		t.Errorf("%d CAs are trusted after the rotation, or the old one", strings.Count(now, "BEGIN"))
	}
	eventually(t, w.connected(t, 4))
}

// proveOtherImages rolls out other images with Envoy as docs/envoy.md says after a CVE: gateways first, and then the
// edges' Deployment. The images are the same ones by their digests, so that Kubernetes replaces and pulls all the same,
// and nothing has to be built.
func proveOtherImages(t *testing.T, w *World) {
	w.disturb(t, "gateways_replaced", 4, func() {
		w.upgrade(t, "--set image.digests.gateway="+w.images.digests["gateway"])
		w.waitReady(t)
	})
	w.runs(t, w.management, system, "gateway", w.images.pinned("gateway"))
	w.disturb(t, "edges_replaced", 4, func() {
		ask(t, w.workload, "--namespace="+edges, "set", "image", "deployment/fairlead-edge", "*="+w.images.pinned("edge"))
		w.waitReady(t)
	})
	w.runs(t, w.workload, edges, "fairlead-edge", w.images.pinned("edge"))
	eventually(t, w.connected(t, 4))
}

// runs fails the test unless all Pods of a name that are not ending have an image in all containers.
func (w *World) runs(t *testing.T, c *cluster.Cluster, namespace, name, image string) {
	t.Helper()
	var list corev1.PodList
	must(t, c.Client.List(t.Context(), &list, client.InNamespace(namespace),
		client.MatchingLabels{"app.kubernetes.io/name": name}))
	found := 0
	for i := range list.Items {
		if !list.Items[i].DeletionTimestamp.IsZero() {
			continue
		}
		found++
		for _, container := range list.Items[i].Spec.Containers {
			if container.Image != image {
				t.Errorf("%s of Pod %s has the image %s, not %s", container.Name, list.Items[i].Name, container.Image, image)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d Pods of %s run", found, name)
	}
}
