package cluster

import (
	"archive/tar"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
)

func TestEachNodeHasItsOwnPods(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	for number := 1; number <= maxNodes; number++ {
		pods := podsOf(number)
		if seen[pods] || !allPods.Contains(pods.Addr()) || pods.Bits() != 24 {
			t.Errorf("node %d has the Pods %s", number, pods)
		}
		seen[pods] = true
	}
}

func TestConfigurationNeedsEveryValue(t *testing.T) {
	values := map[string]any{
		"Dir": "/dir", "Bin": "/bin", "Address": "172.30.0.1", "Pods": podsOf(1), "AllPods": allPods, "DNS": dns,
		"Group": "/lab/node-1", "Pause": pauseImage, "Image": coreDNSImage,
		"Resolver": FirstBalancer, "Name": "node-1", "Labels": "site=north", "Token": "abcdef.0123456789abcdef",
		"Hash": "sha256:00", "Endpoint": "172.30.0.250:6443", "Patches": "/patches", "Version": "v1.37.1",
		"Services": services, "Old": false,
	}
	files, err := configs.ReadDir("config")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		text, err := render(file.Name(), values)
		if err != nil || strings.Contains(string(text), "{{") || strings.Contains(string(text), "<no value>") {
			t.Errorf("%s: %v\n%s", file.Name(), err, text)
		}
		if _, err := render(file.Name(), map[string]any{}); err == nil {
			t.Errorf("%s needs no value", file.Name())
		}
	}
	manifests, err := render("dns.yaml", values)
	if err != nil {
		t.Fatal(err)
	}
	if objects, err := kube.ParseObjects(manifests); err != nil || len(objects) != 6 ||
		!strings.Contains(string(manifests), "forward . "+FirstBalancer.String()+"\n") {
		t.Errorf("the manifests of the DNS have %d objects (%v):\n%s", len(objects), err, manifests)
	}
}

func TestProgramImageHasOneFile(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	image, err := ProgramImage(program)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil || !slices.Equal(config.Config.Entrypoint, []string{"/program"}) || config.Config.User != user {
		t.Fatalf("the image has the configuration %+v, %v", config, err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 || len(config.RootFS.DiffIDs) != 1 {
		t.Fatalf("the image has %d layers and %d in its configuration: %v", len(layers), len(config.RootFS.DiffIDs), err)
	}
	layer, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	files := tar.NewReader(layer)
	header, err := files.Next()
	if err != nil || header.Name != "program" || header.Mode != 0o755 {
		t.Fatalf("the file is %+v, %v", header, err)
	}
	if text, err := io.ReadAll(files); err != nil || string(text) != "text" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if _, err := files.Next(); err != io.EOF {
		t.Errorf("there is another file: %v", err)
	}
}

// TestNetAdminIsTheKernelsFormat compares with what setcap writes: getfattr -e hex -n security.capability prints it.
func TestNetAdminIsTheKernelsFormat(t *testing.T) {
	const want = "0100000200100000000000000000000000000000"
	if got := hex.EncodeToString(netAdmin()); got != want {
		t.Errorf("the attribute is %s, want %s", got, want)
	}
}

func TestBalancerReusesAddressesOfDeletedServices(t *testing.T) {
	b := &balancer{addresses: map[types.UID]netip.Addr{}}
	for _, uid := range []types.UID{"a", "b"} {
		address, err := b.free()
		if err != nil || !netns.OfferedPrefix.Contains(address) {
			t.Fatalf("%s has %s, %v", uid, address, err)
		}
		b.addresses[uid] = address
	}
	if b.addresses["a"] == b.addresses["b"] {
		t.Errorf("both have %s", b.addresses["a"])
	}
	freed := b.addresses["a"]
	delete(b.addresses, "a")
	if got, err := b.free(); got != freed || err != nil {
		t.Errorf("the next has %s (%v), want %s", got, err, freed)
	}
	for host := 1; host < 255; host++ {
		b.addresses[types.UID(rune(host))] = netns.AddressAt(netns.OfferedPrefix, host)
	}
	if got, err := b.free(); err == nil {
		t.Errorf("one more has %s", got)
	}
}

func TestTooManyNodesAreRejected(t *testing.T) {
	if _, err := Start(t.Context(), Options{Nodes: maxNodes + 1}); err == nil || !strings.Contains(err.Error(), "nodes") {
		t.Errorf("Start returns %v", err)
	}
}
