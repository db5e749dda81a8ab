package networks_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead/fairlead/pkg/diagnose/networks"
)

// TestDialNodesOfALargeCluster: like an apiserver, the server adds the metadata of each Node unless the client declines
// it, which is 5 kB with the usual annotations, labels and managed fields.
func TestDialNodesOfALargeCluster(t *testing.T) {
	const nodes = 500
	metadata, err := json.Marshal(map[string]string{"kind": "PartialObjectMetadata", "x": strings.Repeat("x", 5000)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes" {
			return // of a kubelet
		}
		table := metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name"}, {Name: "Status"}, {Name: "Internal-IP"},
		}}
		for i := range nodes {
			row := metav1.TableRow{Cells: []any{fmt.Sprintf("node%d", i), "Ready", fmt.Sprintf("10.1.%d.%d", i/256, i%256)}}
			if r.URL.Query().Get("includeObject") != string(metav1.IncludeNone) {
				row.Object = runtime.RawExtension{Raw: metadata}
			}
			table.Rows = append(table.Rows, row)
		}
		_ = json.NewEncoder(w).Encode(table)
	}))
	defer server.Close()
	dialled, err := networks.DialNodes(t.Context(), server.Client(), server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if reached, fault := dialled.In(networks.Outside); reached != "node0, node1, node2" || fault != nil {
		t.Errorf("reached %q, fault %+v", reached, fault)
	}
}
