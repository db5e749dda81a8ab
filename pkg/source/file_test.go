package source_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

const fleet = `
domain: tunnels.example.com
public: gateways.example.com:443
control: 10.0.0.9:18000
gateways:
- name: gateway-0
  peer: 10.0.0.1:443
  public: gateway-0.example.com:443
workers: 4
clusters:
- namespace: prod
  name: c1
  id: aaaaaaaaaaaaaaaaaaaa
  apiServer: "[fd00::1]:6443"
  others: [10.0.0.2:6443]
  revoked: [edge-stolen]
  extraNames: [api.example.com]
`

func TestParse(t *testing.T) {
	got, err := source.Parse([]byte(fleet))
	if err != nil {
		t.Fatal(err)
	}
	want := model.Fleet{
		Installation: model.Installation{
			Domain:  domain,
			Public:  model.Endpoint{Host: "gateways.example.com", Port: 443},
			Control: model.Endpoint{Host: "10.0.0.9", Port: 18000},
			Gateways: []model.Gateway{
				{
					Name:   "gateway-0",
					Peer:   model.Endpoint{Host: "10.0.0.1", Port: 443},
					Public: model.Endpoint{Host: "gateway-0.example.com", Port: 443},
				},
			},
			Workers: 4,
		},
		Clusters: []model.WorkloadCluster{{
			Key: model.Key{Namespace: "prod", Name: "c1"}, ID: "aaaaaaaaaaaaaaaaaaaa",
			Hostname: "c1.prod.tunnels.example.com", ExtraNames: []string{"api.example.com"},
			APIServer: model.Endpoint{Host: "fd00::1", Port: 6443},
			Others:    []model.Endpoint{{Host: "10.0.0.2", Port: 6443}}, Revoked: []string{"edge-stolen"},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseNamesEveryFault(t *testing.T) {
	tests := map[string]struct {
		old, new string
		wantErr  []string
	}{
		"an unknown field": {old: "public:", new: "publik:", wantErr: []string{"publik"}},
		"no YAML":          {old: "clusters:", new: "\tclusters:", wantErr: []string{"reading fleet"}},
		"a domain that is none": {
			old:     "tunnels.example.com",
			new:     "tunnels",
			wantErr: []string{"tunnel domain", "no dot"},
		},
		"an address without a port": {
			old:     "10.0.0.9:18000",
			new:     "10.0.0.9",
			wantErr: []string{`"10.0.0.9" is not host:port`},
		},
		"a missing address": {
			old:     "control: 10.0.0.9:18000",
			new:     "",
			wantErr: []string{"address of the xds-server"},
		},
		"an id that is none": {old: "id: aaaaaaaaaaaaaaaaaaaa", new: "id: A", wantErr: []string{"prod/c1", "spec.id"}},
		"a bad extra name": {
			old:     "[api.example.com]",
			new:     "[api.example.com, 192.0.2.1]",
			wantErr: []string{"prod/c1", "spec.extraNames[1]"},
		},
		"a further apiserver": {
			old:     "[10.0.0.2:6443]",
			new:     "[10.0.0.2]",
			wantErr: []string{`"10.0.0.2" is not host:port`},
		},
		"no further apiserver": {
			old:     "[10.0.0.2:6443]",
			new:     `[""]`,
			wantErr: []string{"prod/c1", "spec.apiServer.others[0]"},
		},
		"a bad revoked edge": {
			old:     "edge-stolen",
			new:     "edge_stolen",
			wantErr: []string{"prod/c1", "spec.revokedEdges[0]"},
		},
		"several faults": {
			old: "10.0.0.9:18000\ngateways:\n- name: gateway-0\n  peer: 10.0.0.1:443", new: "x\ngateways:\n- name: " +
				"gateway-0\n  peer: z",
			wantErr: []string{`"x"`, `"z"`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := strings.Replace(fleet, tc.old, tc.new, 1)
			if in == fleet {
				t.Fatal("the case changes nothing")
			}
			_, err := source.Parse([]byte(in))
			if err == nil {
				t.Fatal("there is no error")
			}
			for _, want := range tc.wantErr {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want it to tell about %q", err, want)
				}
			}
		})
	}
}
