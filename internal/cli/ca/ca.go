// Package ca is the command group ca: it shows the state of an installation's CA, and rotates it. It writes requests as
// an annotation of the installation's ConfigMap, and reads there the state that the controller has published.
package ca

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
)

// caFlags are the flags of the ca commands.
type caFlags struct {
	management.Flags
	installation string // namespace of the installation
	wait         bool
	timeout      time.Duration
}

// Command returns the command group ca.
func Command() *cobra.Command {
	return command.Group("ca", "Show and rotate the CA", caStatusCommand(), caRotateCommand())
}

func (f *caFlags) addAllTo(cmd *cobra.Command) {
	f.AddTo(cmd.Flags())
	cmd.Flags().
		StringVarP(&f.installation, "namespace", "n", "fairlead-system", "namespace in which Fairlead is installed")
}

func caStatusCommand() *cobra.Command {
	var f caFlags
	var o output.Options
	cmd := &cobra.Command{
		Use: "status", Short: "Show the CAs in use and the progress of a rotation", Args: cobra.NoArgs,
		Long: strings.TrimSpace(`
Show the CAs that the installation trusts, which certificates each CA signs, and the phase of a rotation.

Needs: get on ConfigMaps in the namespace of the installation; list and watch for --watch.
Changes: nothing.
Exit codes: 0 success; 1 the command failed; 2 the command line is invalid.`),
		Example: "  fairlead ca status\n  fairlead ca status --watch",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.open()
			if err != nil {
				return err
			}
			var changes output.Watcher
			if c.from, changes, err = c.Reader(cmd.Context(), o.Watch, c.key.Namespace, &corev1.ConfigMap{}); err != nil {
				return err
			}
			return o.Show(cmd, func(ctx context.Context) (output.View, error) {
				_, rotation, err := c.read(ctx)
				return rotationView(rotation), err
			}, changes)
		},
	}
	f.addAllTo(cmd)
	o.AddWatchTo(cmd)
	return cmd
}

func caRotateCommand() *cobra.Command {
	var f caFlags
	cmd := &cobra.Command{
		Use:     "rotate",
		Short:   "Replace the CA without an interruption",
		Example: "  fairlead ca rotate\n  fairlead ca rotate --wait",
		Long: strings.TrimSpace(`
Request the controller to replace the CA, and wait until the rotation begins. If a rotation is running already,
the command follows it. You can stop the command and repeat it at any time.

The controller completes the rotation without the command, by default after a little more than 90 days, so that
disconnected edges can renew their certificates. The controller's flag --ca-overlap sets another time.

Needs: get and patch on ConfigMaps in the namespace of the installation.
Changes: an annotation of the ConfigMap that requests the rotation.
Exit codes: 0 the rotation has begun, or has ended with --wait; 1 it has not begun in time, or the command
failed; 2 the command line is invalid.`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.open()
			if err != nil {
				return err
			}
			return c.rotate(cmd.Context(), cmd.OutOrStdout(), f)
		},
	}
	f.addAllTo(cmd)
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait for the end of the rotation, and show each phase")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait until the rotation begins")
	return cmd
}

// authority reads the public state of the CA.
type authority struct {
	*management.Client
	from client.Reader
	key  client.ObjectKey
}

func (f *caFlags) open() (*authority, error) {
	c, err := f.Open()
	if err != nil {
		return nil, err
	}
	return &authority{c, c, client.ObjectKey{Namespace: f.installation, Name: v1alpha1.InstallationConfigMapName}}, nil
}

func (a *authority) read(ctx context.Context) (*corev1.ConfigMap, v1alpha1.CARotation, error) {
	var config corev1.ConfigMap
	var rotation v1alpha1.CARotation
	if err := a.from.Get(ctx, a.key, &config); err != nil {
		return nil, rotation, fmt.Errorf("reading ConfigMap %s: %w", a.key, err)
	}
	text, ok := config.Data[v1alpha1.CARotationKey]
	if !ok {
		return nil, rotation, fmt.Errorf("ConfigMap %s has no CA yet: check that the controller runs", a.key)
	}
	if err := json.Unmarshal([]byte(text), &rotation); err != nil {
		return nil, rotation, fmt.Errorf("reading %s of ConfigMap %s: %w", v1alpha1.CARotationKey, a.key, err)
	}
	return &config, rotation, nil
}

// rotate requests a rotation unless one is running, and waits until it has begun, or with --wait until it has ended.
func (a *authority) rotate(ctx context.Context, out io.Writer, f caFlags) error {
	config, before, err := a.read(ctx)
	if err != nil {
		return err
	}
	if before.Phase == v1alpha1.CAPhaseSteady {
		if err := a.ask(ctx, config, before); err != nil {
			return err
		}
	} else {
		_, _ = fmt.Fprintln(out, "a rotation is already running")
	}
	waiting, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	begun := func(now v1alpha1.CARotation) bool {
		return now.Phase != v1alpha1.CAPhaseSteady || serials(now) != serials(before)
	}
	now, err := a.until(waiting, begun, func(v1alpha1.CARotation) {})
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return fmt.Errorf(
			"the rotation has not begun within %s: check that the controller runs; the rotation begins when it does", f.timeout,
		)
	case err != nil:
		return err
	}
	_, _ = fmt.Fprintln(out, phaseLine(now))
	if !f.wait {
		return nil
	}
	last := now
	_, err = a.until(
		ctx,
		func(now v1alpha1.CARotation) bool { return now.Phase == v1alpha1.CAPhaseSteady },
		func(now v1alpha1.CARotation) {
			if now.Phase != last.Phase || (now.Until != nil) != (last.Until != nil) {
				_, _ = fmt.Fprintln(out, phaseLine(now))
			}
			last = now
		},
	)
	return err
}

// ask writes the request for the controller.
func (a *authority) ask(ctx context.Context, config *corev1.ConfigMap, now v1alpha1.CARotation) error {
	if len(now.CAs) > 0 && now.CAs[len(now.CAs)-1].Brought {
		return fmt.Errorf(
			"the CA was supplied by you: put another one into Secret %s/%s, or have its issuer renew it (cert-manager: cmctl "+
				"renew), and the rotation begins automatically",
			a.key.Namespace,
			v1alpha1.CASecretName,
		)
	}
	if now.Problem != "" {
		return errors.New(now.Problem)
	}
	want := config.DeepCopy()
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	want.Annotations[v1alpha1.RotateCAAnnotation] = time.Now().UTC().Format(time.RFC3339)
	if err := a.Patch(ctx, want, client.MergeFrom(config)); err != nil {
		return fmt.Errorf("requesting a rotation: %w", err)
	}
	return nil
}

// until polls the state and shows it until so returns true.
func (a *authority) until(
	ctx context.Context, so func(v1alpha1.CARotation) bool, show func(v1alpha1.CARotation),
) (v1alpha1.CARotation, error) {
	again := time.NewTicker(management.PollInterval)
	defer again.Stop()
	for {
		_, now, err := a.read(ctx)
		if err == nil {
			if show(now); so(now) {
				return now, nil
			}
		}
		select {
		case <-ctx.Done(): // a short outage of the apiserver does not end a wait that may take months
			return now, errors.Join(ctx.Err(), err)
		case <-again.C:
		}
	}
}

func serials(r v1alpha1.CARotation) string {
	var all []string
	for _, ca := range r.CAs {
		all = append(all, ca.Serial)
	}
	return strings.Join(all, " ")
}

// phaseLine describes a phase in one line.
func phaseLine(r v1alpha1.CARotation) string {
	if r.Phase == v1alpha1.CAPhaseSteady {
		return "steady: the rotation is complete"
	}
	line := map[v1alpha1.CAPhase]string{
		v1alpha1.CAPhaseIntroduce: "introduce: the new CA is distributed, the old one signs",
		v1alpha1.CAPhaseMove:      "move: the new CA signs for edges and gateways",
		v1alpha1.CAPhaseRetire:    "retire: the new CA signs for all, the old one is being removed",
	}[r.Phase]
	if r.Until != nil {
		line += ", until " + clock(r.Until)
	}
	if r.Ends != nil {
		line += "; the rotation ends at " + clock(r.Ends)
	}
	return line
}

func rotationView(r v1alpha1.CARotation) output.View {
	t := &output.Table{Columns: output.Columns("SERIAL", "SUBJECT", "ORIGIN", "SIGNS FOR", "ENDS")}
	for _, ca := range r.CAs {
		origin, signs := "made", ""
		if ca.Brought {
			origin = "brought"
		}
		if len(ca.Signs) > 0 {
			signs = strings.Join(ca.Signs, ",")
		}
		t.Add(
			ca.Serial, ca, output.Plain(ca.Serial), output.Plain(ca.Subject), output.Plain(origin),
			output.Plain(output.OrDash(signs)),
			output.Plain(clock(&ca.NotAfter)),
		)
	}
	return output.View{Data: r, Page: func(p *output.Page) {
		p.Table(t)
		switch {
		case r.Phase != v1alpha1.CAPhaseSteady:
			p.Line(output.Plain(phaseLine(r)))
		case r.Next != nil:
			p.Line(output.Plain("no rotation is running; the next one begins at " + clock(r.Next)))
		default:
			p.Line(output.Plain("no rotation is running; one begins when you supply another CA"))
		}
		for _, ca := range r.CAs {
			if ca.CrossSignedUntil != nil {
				p.Line(output.Plain("bootstrap files with the CA " + ca.CrossSignedBy + ", which was before " + ca.Serial +
					", work until " + clock(ca.CrossSignedUntil)))
			}
		}
		if r.Problem != "" {
			p.Line(output.Styled(output.StyleBad, "problem: "), output.Plain(r.Problem))
		}
	}}
}

func clock(t *metav1.Time) string { return t.UTC().Format(time.RFC3339) }
