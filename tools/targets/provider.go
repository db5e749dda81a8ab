package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/client/config"
	"google.golang.org/grpc/codes"
)

// reconcileTime is how long the provider gives the calls of one step.
const reconcileTime = 5 * time.Second

// talosProvider makes the calls of Talos' control-plane provider to the machines at -endpoints, with its options of the
// client: see controllers/configs.go, etcd.go and health.go there. It prints the machine that answered each call.
func talosProvider(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("talos-provider", flag.ContinueOnError)
	file := flags.String("talosconfig", "", "file with the talosconfig of the cluster")
	endpoints := flags.String("endpoints", "", "addresses of Machines, with commas")
	node := flags.String("node", "", "the internal address of the Machine, for bootstrap")
	step := flags.String("step", "health", "bootstrap, health or leave")
	if err := flags.Parse(args); err != nil {
		return err
	}
	data, err := os.ReadFile(*file)
	if err != nil {
		return fmt.Errorf("reading -talosconfig: %w", err)
	}
	talosconfig, err := config.FromBytes(data)
	if err != nil {
		return fmt.Errorf("parsing -talosconfig: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileTime)
	defer cancel()
	c, err := client.New(ctx, client.WithEndpoints(list(*endpoints)...), client.WithConfig(talosconfig))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	switch *step {
	case "bootstrap":
		return bootstrap(ctx, c, *node)
	case "health":
		return health(ctx, c)
	case "leave":
		return leave(ctx, c)
	}
	return fmt.Errorf("-step=%s is none", *step)
}

// bootstrap starts etcd unless its folder exists.
func bootstrap(ctx context.Context, c *client.Client, node string) error {
	files, err := c.LS(client.WithNodes(ctx, node), &machineapi.ListRequest{Root: "/var/lib/etcd/member"})
	if err != nil {
		return fmt.Errorf("listing files: %w", err)
	}
	for {
		file, err := files.Recv()
		if errors.Is(err, io.EOF) || client.StatusCode(err) == codes.Canceled {
			break
		}
		if err != nil {
			return fmt.Errorf("listing files: %w", err)
		}
		if file.GetMetadata().GetError() == "" {
			fmt.Println("etcd runs already:", file.GetMetadata().GetHostname())
			return nil
		}
	}
	if err := c.Bootstrap(client.WithNodes(ctx, node), &machineapi.BootstrapRequest{}); err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	fmt.Println("etcd is started")
	return nil
}

// health checks etcd and the services of a machine, and reads its events.
func health(ctx context.Context, c *client.Client) error {
	services, err := c.ServiceInfo(ctx, "etcd")
	if err != nil {
		return fmt.Errorf("reading the state of etcd: %w", err)
	}
	for _, s := range services {
		if !s.Service.GetHealth().GetHealthy() {
			return fmt.Errorf("%s: etcd is %s", s.Metadata.GetHostname(), s.Service.GetState())
		}
		fmt.Println("etcd is healthy:", s.Metadata.GetHostname())
	}
	members, err := c.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
	if err != nil {
		return fmt.Errorf("listing the members of etcd: %w", err)
	}
	for _, m := range members.GetMessages() {
		fmt.Println("members of etcd:", len(m.GetMembers()))
	}
	if _, err := c.ServiceList(ctx); err != nil {
		return fmt.Errorf("listing services: %w", err)
	}
	events := make(chan client.EventResult)
	if err := c.EventsWatchV2(ctx, events, client.WithTailEvents(-1)); err != nil {
		return fmt.Errorf("watching events: %w", err)
	}
	for {
		event := <-events // ends with an error at the deadline of ctx at the latest
		if event.Error != nil {
			return fmt.Errorf("watching events: %w", event.Error)
		}
		sequence, ok := event.Event.Payload.(*machineapi.SequenceEvent)
		if ok && sequence.GetAction() == machineapi.SequenceEvent_STOP {
			fmt.Println("has booted:", event.Event.Node)
			return nil
		}
	}
}

// leave removes the machine that answers from etcd. The provider calls it before it deletes that Machine, and sends no
// address: so the connection must end at no other machine.
func leave(ctx context.Context, c *client.Client) error {
	services, err := c.ServiceInfo(ctx, "etcd")
	if err != nil {
		return fmt.Errorf("reading the state of etcd: %w", err)
	}
	for _, s := range services {
		if s.Service.GetState() == "Finished" {
			continue
		}
		if _, err := c.EtcdForfeitLeadership(ctx, &machineapi.EtcdForfeitLeadershipRequest{}); err != nil {
			return fmt.Errorf("moving the leadership of etcd: %w", err)
		}
		if err := c.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{}); err != nil {
			return fmt.Errorf("leaving etcd: %w", err)
		}
		fmt.Println("has left etcd:", s.Metadata.GetHostname())
	}
	return nil
}
