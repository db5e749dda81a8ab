package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// apid is a stand-in for the API of one Talos machine: the calls that the control-plane provider makes, with the state
// of an etcd that has a single member.
type apid struct {
	machineapi.UnimplementedMachineServiceServer
	hostname, address string

	mu           sync.Mutex
	bootstrapped bool
	left         bool
}

// talosAPID serves the API of a machine until it is stopped. Clients must have a certificate of an administrator.
func talosAPID(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("talos-apid", flag.ContinueOnError)
	dir := flags.String("dir", "", "folder of talos-pki")
	address := flags.String("address", "", "of the machine")
	hostname := flags.String("hostname", "", "of the machine")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(*dir, apidCertificate), filepath.Join(*dir, apidKey))
	if err != nil {
		return fmt.Errorf("reading the certificate: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(*dir, osCAFile))
	if err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(ca) {
		return errors.New("the CA has no certificate")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(*address, "50000"))
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
			MinVersion: tls.VersionTLS13,
		})),
		grpc.UnaryInterceptor(func(
			ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
		) (any, error) {
			if err := authorize(ctx, *address, info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.StreamInterceptor(func(
			server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
		) error {
			if err := authorize(stream.Context(), *address, info.FullMethod); err != nil {
				return err
			}
			return next(server, stream)
		}),
	)
	machineapi.RegisterMachineServiceServer(server, &apid{hostname: *hostname, address: *address})
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(listener)
}

// authorize rejects clients without the role of an administrator, and requests for other machines, to which this
// stand-in does not forward. Each request is a line of the log.
func authorize(ctx context.Context, address, method string) error {
	from, _ := peer.FromContext(ctx)
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return status.Error(codes.Unauthenticated, "no client certificate")
	}
	roles, _ := role.Parse(info.State.PeerCertificates[0].Subject.Organization)
	if !roles.Includes(role.Admin) {
		return status.Error(codes.PermissionDenied, "the client is no administrator")
	}
	all, _ := metadata.FromIncomingContext(ctx)
	nodes := append(all.Get("nodes"), all.Get("node")...)
	if slices.ContainsFunc(nodes, func(node string) bool { return node != address }) {
		return status.Errorf(codes.Unavailable, "%v is not this machine, %s", nodes, address)
	}
	fmt.Printf("%s sni=%q\n", method, info.State.ServerName)
	return nil
}

func (a *apid) metadata() *common.Metadata { return &common.Metadata{Hostname: a.hostname} }

// List answers that a folder does not exist until Bootstrap: the provider reads only the folder of etcd's data.
func (a *apid) List(request *machineapi.ListRequest, stream grpc.ServerStreamingServer[machineapi.FileInfo]) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := &machineapi.FileInfo{Metadata: a.metadata(), Name: request.GetRoot(), IsDir: true}
	if !a.bootstrapped {
		info.Metadata.Error = "lstat " + request.GetRoot() + ": no such file or directory"
	}
	return stream.Send(info)
}

// Bootstrap makes etcd run.
func (a *apid) Bootstrap(context.Context, *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bootstrapped {
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	a.bootstrapped = true
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{Metadata: a.metadata()}}}, nil
}

// ServiceList returns the state of etcd.
func (a *apid) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	state := "Preparing"
	switch {
	case a.left:
		state = "Finished"
	case a.bootstrapped:
		state = "Running"
	}
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{
		Metadata: a.metadata(),
		Services: []*machineapi.ServiceInfo{{
			Id: "etcd", State: state, Health: &machineapi.ServiceHealth{Healthy: state == "Running"},
			Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{{State: state}}},
		}},
	}}}, nil
}

// EtcdMemberList returns the only member.
func (a *apid) EtcdMemberList(
	context.Context, *machineapi.EtcdMemberListRequest,
) (*machineapi.EtcdMemberListResponse, error) {
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{
		Metadata: a.metadata(), Members: []*machineapi.EtcdMember{{Id: 1, Hostname: a.hostname}},
	}}}, nil
}

// EtcdForfeitLeadership does nothing, because there is no other member.
func (a *apid) EtcdForfeitLeadership(
	context.Context, *machineapi.EtcdForfeitLeadershipRequest,
) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	return &machineapi.EtcdForfeitLeadershipResponse{
		Messages: []*machineapi.EtcdForfeitLeadership{{Metadata: a.metadata()}},
	}, nil
}

// EtcdLeaveCluster ends etcd on this machine.
func (a *apid) EtcdLeaveCluster(
	context.Context, *machineapi.EtcdLeaveClusterRequest,
) (*machineapi.EtcdLeaveClusterResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = true
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{Metadata: a.metadata()}}}, nil
}

// Events sends the end of the boot sequence, and then nothing until the client ends.
func (a *apid) Events(_ *machineapi.EventsRequest, stream grpc.ServerStreamingServer[machineapi.Event]) error {
	for _, action := range []machineapi.SequenceEvent_Action{
		machineapi.SequenceEvent_START, machineapi.SequenceEvent_STOP,
	} {
		data, err := anypb.New(&machineapi.SequenceEvent{Sequence: "boot", Action: action})
		if err != nil {
			return err
		}
		data.TypeUrl = "talos/runtime/machine.SequenceEvent" // as Talos names it, without a host
		// The client discards the first message, which must be empty.
		if action == machineapi.SequenceEvent_START {
			if err := stream.Send(&machineapi.Event{Metadata: a.metadata()}); err != nil {
				return err
			}
		}
		if err := stream.Send(&machineapi.Event{Metadata: a.metadata(), Data: data, Id: action.String()}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}
