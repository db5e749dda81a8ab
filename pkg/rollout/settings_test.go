package rollout

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

var inst = model.Installation{
	Domain: "tunnels.example.com", Public: model.Endpoint{Host: "gw.example.com", Port: 443},
	Control:  model.Endpoint{Host: "::1", Port: 18000},
	Gateways: []model.Gateway{{Name: "gateway-0"}, {Name: "gateway-1"}},
	Workers:  3, Handshakes: 7, Lanes: 3, AccessLog: model.AccessLogAll, ReplicaAddress: "gw-{i}.example.com:443",
	GatewaysPerTunnel: 2,
}

// TestEverySettingOfAnInstallationIsInItsProfile sets one field after the other. A field that is not in the profile
// would reach all Envoys at once.
func TestEverySettingOfAnInstallationIsInItsProfile(t *testing.T) {
	none := SettingsOf(model.Installation{}, "0.1").Profile()
	for i := range reflect.TypeFor[model.Installation]().NumField() {
		field := reflect.TypeFor[model.Installation]().Field(i)
		if field.Name == "Domain" || field.Name == "Gateways" { // the domain never changes, and gateways change at once
			continue
		}
		one := model.Installation{}
		reflect.ValueOf(&one).Elem().Field(i).Set(reflect.ValueOf(inst).Field(i))
		settings := SettingsOf(one, "0.1")
		if settings.Profile() == none {
			t.Errorf("%s is in no profile", field.Name)
		}
	}
	settings, err := SettingsOf(inst, "0.1").Profile().Settings()
	if err != nil {
		t.Fatal(err)
	}
	bare := model.Installation{Domain: inst.Domain, Gateways: inst.Gateways, ReplicaAddress: inst.ReplicaAddress}
	if got, err := settings.Installation(bare); err != nil || !reflect.DeepEqual(got, inst) {
		t.Errorf("from its profile it is %+v (%v), was %+v", got, err, inst)
	}
}

func TestReplicaAddressesFollowTheProfile(t *testing.T) {
	before := inst
	before.ReplicaAddress = ""
	got, err := SettingsOf(inst, "0.1").Installation(before)
	if err != nil || got.Gateways[1].Public.String() != "gw-1.example.com:443" || before.Gateways[1].Public.Port != 0 {
		t.Errorf("got %+v (%v)", got.Gateways, err)
	}
	back, err := SettingsOf(before, "0.1").Installation(got)
	if err != nil || !reflect.DeepEqual(back, before) {
		t.Errorf("back: %+v (%v)", back, err)
	}
}

func TestProfilesOfOtherBuilds(t *testing.T) {
	p, err := ParseProfile(` {"version": "9.9", "later": {"b": 1.50, "a": 2}, "control": "a:1", "public": "b:2"}`)
	if err != nil || p != `{"control":"a:1","later":{"a":2,"b":1.50},"public":"b:2","version":"9.9"}` {
		t.Fatalf("got %s (%v)", p, err)
	}
	text, err := Record{Current: p}.Text()
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRecord(map[string]string{RecordKey: text})
	if err != nil || r.Current != p {
		t.Errorf("after a record it is %+v (%v)", r, err)
	}
	if s, err := r.Current.Settings(); err != nil || s.Version != "9.9" {
		t.Errorf("read as %+v (%v)", s, err)
	}
	for name, text := range map[string]string{"no JSON": "x", "null": "null", "a list": "[]", "too long": `{"a":"` +
		strings.Repeat("a", maxProfile) + `"}`} {
		if p, err := ParseProfile(text); err == nil {
			t.Errorf("%s is read as %s", name, p)
		}
	}
}

func TestInvalidRecordsAreRejected(t *testing.T) {
	good := Record{
		Current: old,
		Next:    newer,
		Phase:   PhaseFirst,
		Since:   start,
		Nodes:   []Member{{Node: Node{"edge-a", "aaa"}, Tunnels: map[string]int{"gateway-0": 4}}},
	}
	text, err := good.Text()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := ParseRecord(map[string]string{RecordKey: text}); err != nil || !reflect.DeepEqual(*r, good) {
		t.Fatalf("read as %+v (%v)", r, err)
	}
	if r, err := ParseRecord(nil); r != nil || err != nil {
		t.Errorf("no record is %+v (%v)", r, err)
	}
	for name, change := range map[string]func(*Record){
		"no current profile": func(r *Record) { r.Current = "" },
		"no next profile":    func(r *Record) { r.Next = "" },
		"another phase":      func(r *Record) { r.Phase = "second" },
	} {
		bad := good
		change(&bad)
		text, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := ParseRecord(map[string]string{RecordKey: string(text)}); err == nil {
			t.Errorf("%s: read as %+v", name, r)
		}
	}
}
