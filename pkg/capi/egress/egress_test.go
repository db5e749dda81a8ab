package egress

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead/fairlead/internal/kubetest"
)

var params = Params{
	Namespace: "prod", Cluster: "c1", Image: "registry.example.com/fairlead/fairlead-edge:v0.1.0", Endpoints: true,
}

// apiserver runs with our flags and our configuration, at another path.
var (
	apiserver kubetest.Server
	socket    string
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		panic(err)
	}
	socket = filepath.Join(dir, "egress.sock")
	config := filepath.Join(dir, configFile)
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(SocketSelector(), Socket, socket)), 0o600); err != nil {
		panic(err)
	}
	apiserver.Flags = map[string]string{}
	for _, f := range params.flags() {
		apiserver.Flags[f.name] = strings.ReplaceAll(f.value, configDir+"/"+configFile, config)
	}
	code := apiserver.Run(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// TestAnApiserverDialsNodesThroughTheSocket: a real kube-apiserver accepts the flags and the configuration, and sends
// CONNECT with the address of the Node, although the Node has a host name too.
func TestAnApiserverDialsNodesThroughTheSocket(t *testing.T) {
	clients, err := kubernetes.NewForConfig(apiserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	asked := make(chan string, 16)
	go answer(listener, asked)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
	if node, err = clients.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "worker-1"}, {Type: corev1.NodeInternalIP, Address: "10.1.0.9"},
	}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	if _, err := clients.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = clients.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/worker-1/proxy/healthz").Do(ctx).Error()
	if err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("the answer is %v", err)
	}
	select {
	case request := <-asked:
		if request != "CONNECT 10.1.0.9:10250" {
			t.Errorf("it sends %s", request)
		}
	case <-ctx.Done():
		t.Error("it sends nothing")
	}
}

// answer rejects each request.
func answer(listener net.Listener, asked chan<- string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err == nil {
			asked <- request.Method + " " + request.RequestURI
			fmt.Fprint(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
		}
		_ = conn.Close()
	}
}

func TestValidateRejects(t *testing.T) {
	if err := params.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Params){
		"a name that is no name":   func(p *Params) { p.Cluster = "c1\nspec:" },
		"no image":                 func(p *Params) { p.Image = "" },
		"an image with more lines": func(p *Params) { p.Image = "a\nb" },
	} {
		p := params
		change(&p)
		if p.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
