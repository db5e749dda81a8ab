package identity

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// rotation returns the public state of the CA.
func rotation(ctx context.Context, w *world.World) (v1alpha1.CARotation, error) {
	var info corev1.ConfigMap
	var rotation v1alpha1.CARotation
	name := types.NamespacedName{Namespace: lab.InstallationNamespace, Name: v1alpha1.InstallationConfigMapName}
	if err := w.Management.Client.Get(ctx, name, &info); err != nil {
		return rotation, err
	}
	return rotation, json.Unmarshal([]byte(info.Data[v1alpha1.CARotationKey]), &rotation)
}

// rotateCA replaces the CA under load.
func (r *rotations) rotateCA(t *testing.T) {
	before, err := rotation(t.Context(), r.World)
	must(t, err)
	if before.Phase != v1alpha1.CAPhaseSteady || len(before.CAs) != 1 {
		t.Fatalf("before anything the rotation is %+v", before)
	}
	since := r.load.Count()
	r.bootstrap = r.members[0].BootstrapFile(t)
	start := time.Now()
	that(t, "fairlead ca rotate starts a rotation that continues when the command is interrupted", func(t *testing.T) {
		r.interrupted(t, string(v1alpha1.CAPhaseIntroduce))
	})
	that(t, "fairlead ca rotate resumes a running rotation, shows its phases and exits at its end", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		out, err := r.Exec(ctx, "ca", "rotate", "--wait")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, phase := range []v1alpha1.CAPhase{v1alpha1.CAPhaseMove, v1alpha1.CAPhaseRetire, v1alpha1.CAPhaseSteady} {
			if !strings.Contains(out, string(phase)) {
				t.Errorf("the output lacks the phase %s: %s", phase, out)
			}
		}
	})
	measured("ca_rotation_s", time.Since(start).Seconds())
	that(t, "all programs use only the new CA after the rotation", func(t *testing.T) { r.onlyNewCA(t, before) })
	that(t, "no request fails and no stream breaks during the rotation of the CA", func(t *testing.T) {
		r.undisturbed(t, since)
		measured("ca_rotation_requests", float64(r.load.Count().Requests-since.Requests))
	})
	that(t, "a machine with a bootstrap file from before the rotation joins", func(t *testing.T) {
		edge, err := r.RunEdge(lab.EdgeSpec{Name: "edge-old-file", Bootstraps: [][]byte{r.bootstrap}})
		must(t, err)
		eventually(t, edge.Ready)
		world.StopEdge(t, edge)
	})
	that(t, "a machine with a new bootstrap file joins", func(t *testing.T) {
		edge := r.StartEdge(t, lab.EdgeSpec{Name: "edge-new-file"}, r.members[0])
		eventually(t, edge.Ready)
		world.StopEdge(t, edge)
	})
}

// interrupted begins a rotation, and kills the command as soon as it prints a text.
func (r *rotations) interrupted(t *testing.T, text string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd, err := r.Command(ctx, "ca", "rotate", "--wait")
	must(t, err)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	printed := false
	for lines := bufio.NewScanner(out); !printed && lines.Scan(); {
		printed = strings.Contains(lines.Text(), text)
	}
	interrupted := cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); !printed || interrupted != nil {
		t.Errorf("the command did not print %q, or ended before the interrupt: %v, %v", text, interrupted, err)
	}
}

// rotatesItself waits until a CA is replaced because of its age.
func (r *rotations) rotatesItself(t *testing.T) {
	before, err := rotation(t.Context(), r.World)
	must(t, err)
	since := r.load.Count()
	that(
		t,
		"the controller replaces a CA before it expires: no request fails, no stream breaks",
		func(t *testing.T) {
			must(t, proc.Wait(t.Context(), caLife, func(ctx context.Context) error {
				now, err := rotation(ctx, r.World)
				if err == nil && now.Phase == v1alpha1.CAPhaseSteady {
					err = fmt.Errorf("no rotation has begun, the next one is to at %s", now.Next)
				}
				return err
			}))
			left := time.Until(before.CAs[0].NotAfter.Time)
			r.onlyNewCA(t, before)
			measured("ca_rotated_before_end_s", left.Seconds())
			r.undisturbed(t, since)
		},
	)
	that(t, "an edge with a bootstrap file from before two rotations reports the cause", func(t *testing.T) {
		edge, err := r.RunEdge(lab.EdgeSpec{Name: "edge-older-file", Bootstraps: [][]byte{r.bootstrap}})
		must(t, err)
		eventually(t, r.LogContains("edge-older-file", "the CA in the bootstrap file belongs to another"))
		world.StopEdge(t, edge)
	})
}

// onlyNewCA fails the test if a program has a leaf of another CA than the new one, or trusts another CA.
func (r *rotations) onlyNewCA(t *testing.T, before v1alpha1.CARotation) {
	t.Helper()
	var now v1alpha1.CARotation
	must(t, proc.Wait(t.Context(), 3*patience, func(ctx context.Context) (err error) {
		if now, err = rotation(ctx, r.World); err == nil &&
			(now.Phase != v1alpha1.CAPhaseSteady || len(now.CAs) != 1 || now.CAs[0].Serial == before.CAs[0].Serial) {
			err = fmt.Errorf("the rotation is %+v", now)
		}
		return err
	}))
	folders := []string{r.File("xds-server"), r.Gateways[0].StateDir, r.Gateways[1].StateDir}
	for _, e := range r.edges {
		folders = append(folders, e.StateDir)
	}
	for _, dir := range folders {
		eventually(t, func(context.Context) error {
			all, err := outsider.StealAll(domain, dir)
			for _, stolen := range all {
				if n := strings.Count(string(stolen.Bundle), "BEGIN CERTIFICATE"); n != 1 {
					err = errors.Join(err, fmt.Errorf("%s trusts %d CAs", stolen.Folder, n))
				}
			}
			return err
		})
	}
}

// broughtAnew proves what happens when another CA is written into the Secret.
func (d *doors) broughtAnew(t *testing.T) {
	next, err := certs.NewCA("Example Corp Issuing CA 2", time.Now(), 365*day)
	must(t, err)
	that(t, "a new CA in the Secret is trusted beside the CA that signs", func(t *testing.T) {
		d.putCA(t, next)
		eventually(t, phase(d.World, v1alpha1.CAPhaseIntroduce, d.ca, next))
		stolen := world.Steal(t, d.Edge(t, lab.EdgeSpec{Name: "edge-two-cas"}, d.Member(t, "two-cas", nil)))
		if n := strings.Count(string(stolen.Bundle), "BEGIN CERTIFICATE"); n != 2 ||
			stolen.Leaf.Issuer.String() != d.ca.Subject() {
			t.Errorf("a new edge trusts %d CAs, and its leaf is signed by %s", n, stolen.Leaf.Issuer)
		}
	})
	that(t, "restoring the previous CA in the Secret cancels the rotation", func(t *testing.T) {
		d.putCA(t, d.ca)
		eventually(t, phase(d.World, v1alpha1.CAPhaseSteady, d.ca))
	})
}

// putCA writes the Secret of the CA, as its issuer would.
func (d *doors) putCA(t *testing.T, ca *certs.CA) {
	t.Helper()
	key, err := ca.KeyPEM()
	must(t, err)
	var secret corev1.Secret
	must(
		t,
		d.Management.Client.Get(
			t.Context(), types.NamespacedName{Namespace: lab.InstallationNamespace, Name: v1alpha1.CASecretName}, &secret,
		),
	)
	secret.Data = map[string][]byte{corev1.TLSCertKey: ca.CertPEM(), corev1.TLSPrivateKeyKey: key}
	must(t, d.Management.Client.Update(t.Context(), &secret))
}

// phase returns a condition that is nil once the rotation is in a phase, with the given CAs in the bundle.
func phase(w *world.World, want v1alpha1.CAPhase, cas ...*certs.CA) func(context.Context) error {
	return func(ctx context.Context) error {
		rotation, err := rotation(ctx, w)
		if err != nil {
			return err
		}
		known := len(rotation.CAs) == len(cas)
		for _, ca := range cas {
			known = known &&
				slices.ContainsFunc(rotation.CAs, func(i v1alpha1.CAInfo) bool { return i.Serial == ca.Serial() && i.Brought })
		}
		if rotation.Phase != want || !known {
			return fmt.Errorf("the rotation is %+v", rotation)
		}
		return nil
	}
}
