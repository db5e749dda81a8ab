package edge

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead/fairlead/pkg/model"
)

// FuzzBootstrapFile tests arbitrary content of a bootstrap file. No error contains it, a parsed file can be written
// again, and a complete file names gateways that can be dialled.
func FuzzBootstrapFile(f *testing.F) {
	for _, text := range []string{
		"", "{}", "id: aaaaaaaaaaaaaaaaaaaa\ngateway: gw.example.com:443\ntunnelDomain: tunnels.example.com\ntoken: " +
			"fl1.secret\nca: x\n",
		`{"id":"a","gateway":["a.b:1","[::1]:2"],"gateways":null,"new":{"x":1}}`, "gateway: {a: b}", "a: &a [*a]",
		"token: !!binary secret", "- 1",
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: " +
			"[*c,*c,*c,*c,*c,*c,*c,*c]\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := ParseBootstrapFile(data)
		if err != nil {
			if !errors.Is(err, errNoBootstrapFile) || err.Error() != errNoBootstrapFile.Error() ||
				!cmp.Equal(file, BootstrapFile{}) {
				t.Errorf("the error says more: %v", err)
			}
			return
		}
		text, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseBootstrapFile(text)
		if err == nil && !cmp.Equal(file, again, cmpopts.EquateEmpty()) && !hasEmpty(file) {
			t.Error(cmp.Diff(file, again))
		}
		if file.Check() != nil {
			return
		}
		for _, a := range append(append(Addresses{}, file.Gateway...), file.Gateways...) {
			if e, err := model.ParseEndpoint(a); err != nil || strings.ContainsAny(e.Host, "/ @") {
				t.Errorf("the gateway %q is no address", a)
			}
		}
	})
}

// hasEmpty reports whether a list has a single empty address, which is parsed as an empty list.
func hasEmpty(file BootstrapFile) bool {
	return len(file.Gateway) == 1 && file.Gateway[0] == "" || len(file.Gateways) == 1 && file.Gateways[0] == ""
}
