package synthetic

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// nodesEach is the number of Nodes of each workload cluster.
	nodesEach = 3
	// watchTime ends watches without a timeout of the client.
	watchTime = 10 * time.Minute
)

// documents are the constant answers of Kubernetes' API, by path: Cluster API's first requests.
var documents = map[string]any{
	"/": metav1.RootPaths{Paths: []string{"/api", "/api/v1", "/apis", "/livez", "/readyz", "/version"}},
	"/apis": metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
		Groups:   []metav1.APIGroup{},
	},
	"/api": metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{
			Kind: "APIVersions",
		}, Versions: []string{"v1"}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{},
	},
	"/api/v1": metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
		APIResources: []metav1.APIResource{
			{Name: "nodes", SingularName: "node", Kind: "Node", Verbs: metav1.Verbs{"get", "list", "watch"}},
		},
	},
}

// version is the resource version of every Node, and of lists of Nodes. It never changes.
const version = "1000"

func nodes() []corev1.Node {
	all := make([]corev1.Node, nodesEach)
	for i := range all {
		name := "node-" + strconv.Itoa(i)
		all[i] = corev1.Node{
			TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				Name:            name,
				ResourceVersion: version,
				Labels:          map[string]string{corev1.LabelHostname: name},
			},
			Spec: corev1.NodeSpec{ProviderID: "synthetic://" + name},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			},
		}
	}
	return all
}

// kubernetes answers the requests of a controller that reads only Nodes. It returns false for all other requests.
func kubernetes(w http.ResponseWriter, r *http.Request) bool {
	if document, ok := documents[r.URL.Path]; ok && !r.URL.Query().Has("watch") {
		_ = json.NewEncoder(w).Encode(document)
		return true
	}
	if r.URL.Path != "/api/v1/nodes" {
		return false
	}
	if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		watchNodes(w, r)
		return true
	}
	_ = json.NewEncoder(w).Encode(corev1.NodeList{
		TypeMeta: metav1.TypeMeta{
			Kind:       "NodeList",
			APIVersion: "v1",
		}, ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: nodes(),
	})
	return true
}

// watchNodes sends the Nodes if the request asks for initial events, and then nothing until the watch ends.
func watchNodes(w http.ResponseWriter, r *http.Request) {
	last := watchTime
	if seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds")); err == nil && seconds > 0 {
		last = min(last, time.Duration(seconds)*time.Second)
	}
	w.WriteHeader(http.StatusOK)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, node := range nodes() {
			event(w, "ADDED", node)
		}
		event(w, "BOOKMARK", corev1.Node{
			TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: version,
				Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			},
		})
	}
	_ = http.NewResponseController(w).Flush()
	end := time.NewTimer(last)
	defer end.Stop()
	select {
	case <-r.Context().Done():
	case <-end.C:
	}
}

func event(w http.ResponseWriter, kind string, node corev1.Node) {
	data, err := json.Marshal(node)
	if err == nil {
		fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", kind, data)
	}
}
