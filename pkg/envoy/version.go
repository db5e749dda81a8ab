package envoy

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/model"
)

// Version is a minor version of Fairlead. An agent sends its version in the metadata of its Envoy node, and an
// xds-server renders resources for it. The zero value stands for agents that predate versions and send none.
type Version struct{ Major, Minor uint16 }

var (
	// Current is the version of this build.
	Current = Version{0, 1}
	// Oldest is the oldest supported version: two minor versions before Current, if there are that many.
	Oldest = Version{0, 0}
)

// Versions that introduced an element of resources. Elements that Oldest supports need no version. The Envoy clusters
// of gateways have no versions: all gateways share them, so they are rendered for Oldest.
var (
	connectionLogged      = Version{0, 1} // access logs: the number of the connection
	redialledAtNewAddress = Version{0, 1} // edges: tunnels are dialled anew when the address of a gateway changes
	quickRetries          = Version{0, 1} // gateways: the first retry of a request whose tunnel has ended comes at once
	lanes                 = Version{0, 1} // lanes: further reverse tunnels of an edge, with node ids of their own
	forwarded             = Version{0, 1} // gateways: clients are forwarded to other gateways
	ownAddress            = Version{0, 1} // gateways: a request by CONNECT decides no address in the access log
	requestsBounded       = Version{0, 1} // gateways: requests by CONNECT have a deadline
	networks              = Version{0, 1} // networks of apiservers: scopes, and Envoy clusters with a slash in their names
)

const versionField = "version"

var versionPattern = regexp.MustCompile(`^(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,4})$`)

// String implements fmt.Stringer.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Compare orders versions.
func (v Version) Compare(other Version) int {
	return cmp.Or(cmp.Compare(v.Major, other.Major), cmp.Compare(v.Minor, other.Minor))
}

// has reports whether agents of version v support what was introduced in version since.
func (v Version) has(since Version) bool { return v.Compare(since) >= 0 }

// Networks reports whether agents of version v support networks. Other gateways must not receive
// ScopedRouteConfigurations and the Envoy clusters that OfNetwork matches: their agents would reject them together with
// everything else that is sent with them.
func (v Version) Networks() bool { return v.has(networks) }

// lanes returns how many lanes agents of version v are sent: edges to dial them, gateways to accept and relay them.
func (v Version) lanes(inst model.Installation) int {
	if !v.has(lanes) {
		return 0
	}
	return inst.Lanes
}

// OfNetwork reports whether a name belongs to an Envoy cluster that only networks need: no client of a gateway can
// select it, because it has a slash.
func OfNetwork(name string) bool { return strings.Contains(name, "/") }

// versionOf returns the version that an agent sends, clamped to the versions that this build renders for: a missing,
// malformed or older version is Oldest, a newer one is Current.
func versionOf(fields map[string]*structpb.Value) Version {
	v, _ := RenderedFor(fields[versionField].GetStringValue())
	return v
}

// RenderedFor is the version nearest to a text that this build renders for, and false where that is another one. A text
// that is no version stands for Oldest.
func RenderedFor(text string) (v Version, exact bool) {
	said := Oldest
	match := versionPattern.FindStringSubmatch(text)
	if match != nil {
		major, errMajor := strconv.ParseUint(match[1], 10, 16)
		minor, errMinor := strconv.ParseUint(match[2], 10, 16)
		if errMajor == nil && errMinor == nil {
			said = Version{uint16(major), uint16(minor)}
		} else {
			match = nil
		}
	}
	v = said
	if v.Compare(Oldest) < 0 {
		v = Oldest
	}
	return v.AtMost(Current), match != nil && v.AtMost(Current) == said
}

// AtMost is the older one of two versions.
func (v Version) AtMost(other Version) Version {
	if v.Compare(other) > 0 {
		return other
	}
	return v
}

// addTo adds the version to an agent's metadata.
func (v Version) addTo(fields map[string]*structpb.Value) {
	if v != (Version{}) {
		fields[versionField] = structpb.NewStringValue(v.String())
	}
}
