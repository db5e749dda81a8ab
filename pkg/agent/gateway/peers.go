package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// peersTime bounds one query of all servers.
	peersTime = 3 * time.Second
	// maxPeerServers bounds the connections that a wrong DNS answer can cause.
	maxPeerServers = 32
)

// peerServers holds connections to all xds-servers. Each gateway reports to one of them, so none has all reports.
type peerServers struct {
	gateway *Config
	store   *certs.Store
	conns   map[string]*grpc.ClientConn // by IP address
	why     string                      // the last known reason why the gateway waits; empty: none is known
	// took is how long the slowest server that is there took for the last question, or the question if none is; 0: none
	// was asked.
	took time.Duration
}

// ask returns the combined answers of the servers about the other gateways, with the edges of these tunnel ids
// (Tunnel.spec.id), or all if ids is empty. If some servers did not answer, it returns an error together with the
// answers of the others.
func (s *peerServers) ask(ctx context.Context, ids []string) (reportagent.Peers, error) {
	ctx, cancel := context.WithTimeout(ctx, peersTime)
	defer cancel()
	began, slowest := time.Now(), time.Duration(0)
	defer func() {
		if s.took = slowest; slowest == 0 {
			s.took = time.Since(began)
		}
	}()
	if err := s.connect(ctx); err != nil {
		return reportagent.Peers{}, err
	}
	var answers []*reportv1.PeersAnswer
	var errs []error
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, conn := range s.conns {
		group.Go(func() {
			answer, err := reportv1.NewReportClient(conn).Peers(ctx, &reportv1.PeersRequest{TunnelIds: ids})
			mu.Lock()
			defer mu.Unlock()
			// A server that is gone says nothing about how busy the others are. One that is there and has not answered in
			// time is the busiest.
			if err == nil || conn.GetState() == connectivity.Ready {
				slowest = max(slowest, time.Since(began))
			}
			if err != nil {
				answer = nil
				errs = append(errs, err)
			}
			answers = append(answers, answer)
		})
	}
	group.Wait()
	return reportagent.MergePeers(s.gateway.Name, answers), errors.Join(errs...)
}

// connect updates the connections to one for each present server.
func (s *peerServers) connect(ctx context.Context) error {
	at := s.gateway.Servers
	addresses, err := net.DefaultResolver.LookupHost(ctx, at.Host)
	if err != nil {
		return fmt.Errorf("resolving the xds-servers: %w", err)
	}
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	addresses = addresses[:min(len(addresses), maxPeerServers)]
	for address, conn := range s.conns {
		if !slices.Contains(addresses, address) {
			_ = conn.Close()
			delete(s.conns, address)
		}
	}
	for _, address := range addresses {
		if s.conns[address] != nil {
			continue
		}
		conn, err := dial.Conn(
			&dial.Dialer{Addresses: []model.Endpoint{{Host: address, Port: at.Port}}}, s.gateway.Domain, s.store, s.store,
		)
		if err != nil {
			return err
		}
		if s.conns == nil {
			s.conns = map[string]*grpc.ClientConn{}
		}
		s.conns[address] = conn
	}
	return nil
}

func (s *peerServers) close() {
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}
