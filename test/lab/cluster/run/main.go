// Command run runs a real Kubernetes cluster on this machine until Ctrl-C, as root, and prints how to use it. With
// -remove it starts nothing and removes what killed runs left behind.
//
//	run [-name NAME] [-nodes N] [-image LAYOUT=NAME ...]
//	run -remove
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once. The next run then cleans up.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		_, _ = fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var options cluster.Options
	flags.StringVar(&options.Name, "name", "cluster", "name of the cluster in its kubeconfig")
	flags.IntVar(&options.Nodes, "nodes", 1, "number of nodes")
	remove := flags.Bool("remove", false, "remove what killed runs left behind, and end")
	images := map[string]string{}
	flags.Func("image", "an image to load, as LAYOUT=NAME: the folder of an OCI layout, and the name for Pods",
		func(value string) error {
			layout, name, found := strings.Cut(value, "=")
			if !found {
				return errors.New("want LAYOUT=NAME")
			}
			images[name] = layout
			return nil
		})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *remove {
		return workspace.RemoveLeftovers(ctx)
	}
	began := time.Now()
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return err
	}
	err = serve(ctx, c, images, stdout, time.Since(began))
	return errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
}

// serve loads images, prints how to use the cluster, and waits until ctx ends.
func serve(
	ctx context.Context, c *cluster.Cluster, images map[string]string, stdout io.Writer, took time.Duration,
) error {
	for name, layout := range images {
		if err := c.Load(ctx, layout, name); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(stdout, `%d nodes are ready after %s. Logs: %s
Use it with:
  %s
Press Ctrl-C to stop it.
`, len(c.Nodes()), took.Round(time.Second/10), c.File("logs"), strings.Join(c.Kubectl(ctx, "get", "nodes").Args, " "))
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
