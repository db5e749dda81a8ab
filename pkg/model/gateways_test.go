package model_test

import (
	"fmt"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestValidateInstallation(t *testing.T) {
	peer := model.Endpoint{Host: "10.0.0.1", Port: 443}
	tests := map[string]struct {
		in      func(i *model.Installation)
		wantErr string
	}{
		"one gateway needs no peer address": {in: func(*model.Installation) {}},
		"several need one each": {
			in: func(i *model.Installation) {
				i.Gateways = append(i.Gateways, model.Gateway{Name: "gateway-1", Peer: peer})
			},
			wantErr: "peer address of gateway-0",
		},
		"one with an address of its own": {in: func(i *model.Installation) {
			i.Gateways[0].Public = model.Endpoint{Host: "gw-0.example.com", Port: 443}
		}},
		"one with half an address": {
			in:      func(i *model.Installation) { i.Gateways[0].Public.Host = "gw-0.example.com" },
			wantErr: "public address of gateway-0",
		},
		"no gateway": {in: func(i *model.Installation) { i.Gateways = nil }, wantErr: "no gateway"},
		"one twice": {
			in:      func(i *model.Installation) { i.Gateways = append(i.Gateways, i.Gateways...) },
			wantErr: "named twice",
		},
		"more than edges have tunnels for": {
			in: func(i *model.Installation) {
				i.Gateways = nil
				for n := range model.MaxGateways + 1 {
					i.Gateways = append(i.Gateways, model.Gateway{Name: fmt.Sprintf("gateway-%d", n), Peer: peer})
				}
			},
			wantErr: "101 gateways",
		},
		"four workers":            {in: func(i *model.Installation) { i.Workers = 4 }},
		"fewer workers than none": {in: func(i *model.Installation) { i.Workers = -1 }, wantErr: "workers"},
		"too many workers":        {in: func(i *model.Installation) { i.Workers = model.MaxWorkers + 1 }, wantErr: "workers"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inst := model.Installation{
				Domain:   domain,
				Public:   peer,
				Control:  peer,
				Gateways: []model.Gateway{{Name: "gateway-0"}},
			}
			tc.in(&inst)
			checkError(t, inst.Validate(), tc.wantErr)
		})
	}
}

func TestReplicaAddress(t *testing.T) {
	tests := map[string]struct {
		in      model.ReplicaAddress
		gateway string
		want    string
		wantErr string
	}{
		"none":                      {gateway: "gateway-3"},
		"a name":                    {in: "gw-{i}.example.com:443", gateway: "gateway-12", want: "gw-12.example.com:443"},
		"a port, and an address":    {in: "192.0.2.1{i}:444{i}", gateway: "gateway-3", want: "192.0.2.13:4443"},
		"nothing that differs":      {in: "gw.example.com:443", gateway: "gateway-3", wantErr: "{i}"},
		"no port":                   {in: "gw-{i}.example.com", gateway: "gateway-3", wantErr: "host:port"},
		"a number that is no part":  {in: "192.0.2.1:{i}", gateway: "gateway-70000", wantErr: "1 to 65535"},
		"something else's name":     {in: "gw-{i}.example.com:443", gateway: "edge-1", wantErr: "gateway-<number>"},
		"a gateway without a place": {in: "gw-{i}.example.com:443", gateway: "gateway-", wantErr: "gateway-<number>"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tc.in.Of(tc.gateway)
			checkError(t, err, tc.wantErr)
			if tc.wantErr == "" && got.String() != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLanesFor(t *testing.T) {
	gateways := make([]model.Gateway, 6)
	for _, tc := range []struct {
		workers, perTunnel, edges, want int
	}{
		{edges: 0, want: 0},
		{edges: 1, want: 5},
		{edges: 200, want: 5},
		{edges: 400, want: 4},
		{edges: 800, want: 3},
		{edges: 1_600, want: 2},
		{edges: 3_200, want: 1},
		{edges: 6_400, want: 0},
		{edges: 1 << 40, want: 0},
		{workers: 4, edges: 50, want: 5},
		{workers: 4, edges: 400, want: 2},
		{perTunnel: 2, edges: 600, want: 5},
		{perTunnel: 2, edges: 1_200, want: 4},
		{perTunnel: 2, edges: 25_600, want: 0},
		{perTunnel: 6, edges: 3_200, want: 1},
		{perTunnel: 2, edges: 1, want: 5},
	} {
		inst := model.Installation{
			Gateways: gateways, Workers: tc.workers, GatewaysPerTunnel: tc.perTunnel, Lanes: 5,
		}
		got := inst.LanesFor(tc.edges, model.WorkloadCluster{})
		if got != tc.want {
			t.Errorf("%+v: %d lanes", tc, got)
		}
		inst.Lanes = 2
		if few := inst.LanesFor(tc.edges, model.WorkloadCluster{}); few != min(got, 2) {
			t.Errorf("%+v: %d lanes of at most 2", tc, few)
		}
	}
}

// TestLanesLeaveRoomForNames: an edge keeps usual reverse tunnels for each name of its workload cluster, and with these
// a gateway has at most 20,000 if edges have lanes.
func TestLanesLeaveRoomForNames(t *testing.T) {
	named := func(names int) (w model.WorkloadCluster) {
		w.Hostname, w.ExtraNames = "c1.prod.tunnels.example.com", make([]string, names-1)
		return w
	}
	for _, workers := range []int{1, 4} {
		inst := model.Installation{Gateways: make([]model.Gateway, 3), Workers: workers, Lanes: model.MaxLanes}
		for edges := 1; edges <= 25_600; edges += 1 + edges/10 {
			before := model.MaxLanes
			for _, names := range []int{1, 2, 3, 5, 9, 17, 33} {
				w := named(names)
				lanes := inst.LanesFor(edges, w)
				if lanes > before {
					t.Errorf("%d edges with %d names have %d lanes, and %d with fewer names", edges, names, lanes, before)
				}
				before = lanes
				all := edges * (inst.Tunnels(w) + workers*model.TunnelsInLanes(lanes))
				if lanes > 0 && all > 20_000 {
					t.Errorf("%d edges with %d names and %d lanes have %d reverse tunnels", edges, names, lanes, all)
				}
			}
		}
	}
	inst := model.Installation{Gateways: make([]model.Gateway, 3), Lanes: model.DefaultLanes}
	for names, want := range map[int]int{1: 2, 2: 2, 3: 1, 5: 0} {
		if got := inst.LanesFor(1_600, named(names)); got != want {
			t.Errorf("1,600 edges with %d names have %d lanes, want %d", names, got, want)
		}
	}
}
