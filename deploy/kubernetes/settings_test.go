package kubernetes_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestTheDocumentNamesWhatASettingRestarts compares docs/settings.md with the programs whose flags contain a setting.
func TestTheDocumentNamesWhatASettingRestarts(t *testing.T) {
	want := usersOfSettings(t)
	document, err := os.ReadFile(filepath.Join(root, "docs/settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (.*) \\|$")
	workload := regexp.MustCompile("`((?:deployment|statefulset)/[a-z-]+)`")
	for _, match := range row.FindAllStringSubmatch(string(document), -1) {
		var named []string
		for _, w := range workload.FindAllStringSubmatch(match[2], -1) {
			named = append(named, w[1])
		}
		slices.Sort(named)
		if got := want[match[1]]; !slices.Equal(got, named) {
			t.Errorf("%s is used by %v, and the document has %v", match[1], got, named)
		}
		delete(want, match[1])
	}
	delete(want, "TUNNEL_DOMAIN") // never changes
	if len(want) > 0 {
		t.Errorf("the document does not have %v", want)
	}
}

// usersOfSettings returns which workloads use each setting of settings.yaml in a flag.
func usersOfSettings(t *testing.T) map[string][]string {
	t.Helper()
	users := map[string][]string{}
	for _, file := range []string{
		"settings.yaml", "controller.yaml", "xds-server.yaml", "gateway.yaml", "../runtime-extension/runtime-extension.yaml",
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(data), "\n---\n") {
			var object struct {
				Kind     string
				Metadata struct{ Name string }
				Data     map[string]string
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if file == "settings.yaml" {
				for name := range object.Data {
					users[name] = nil
				}
				continue
			}
			if object.Kind != "Deployment" && object.Kind != "StatefulSet" {
				continue
			}
			for name := range users {
				if strings.Contains(document, "$("+name+")") {
					users[name] = append(users[name], strings.ToLower(object.Kind)+"/"+object.Metadata.Name)
				}
			}
		}
	}
	for name := range users {
		slices.Sort(users[name])
	}
	return users
}
