// Package rollout decides which gateways and edges run a change of what the whole installation shares: first 1 % of
// them, then the rest, and none if the first ones reject it, report trouble or lose tunnels. In go the previous
// record, the announcements of the xds-servers, and a time; out comes the next record. The package reads no object,
// sends nothing, and does not know what a profile means to Envoy.
package rollout

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fairlead/fairlead/pkg/model"
)

// maxProfile is the longest text of a profile, which has ten short fields.
const maxProfile = 4 << 10

// Profile is everything that shapes what all Envoys of an installation run, as compact JSON with sorted keys, so
// equal profiles are equal texts. Decisions compare and copy a profile without decoding it, so a controller can
// carry profiles of newer xds-servers. Empty: none.
type Profile string

// Settings are the fields of a profile that an xds-server of this build reads. A test requires that each field of
// model.Installation except Domain and Gateways is here: a setting that is missing would reach all Envoys at once.
type Settings struct {
	Version        string               `json:"version"` // the newest that is rendered for
	Public         string               `json:"public"`  // host:port
	Control        string               `json:"control"` // host:port
	ReplicaAddress model.ReplicaAddress `json:"replicaAddress,omitempty"`
	Workers        int                  `json:"workers,omitempty"`
	Handshakes     int                  `json:"handshakes,omitempty"`
	Lanes          int                  `json:"lanes,omitempty"`
	PerTunnel      int                  `json:"gatewaysPerTunnel,omitempty"`
	AccessLog      model.AccessLog      `json:"accessLog,omitempty"`
}

// SettingsOf returns the settings of an installation that is rendered for a version.
func SettingsOf(inst model.Installation, version string) Settings {
	return Settings{
		Version: version, Public: inst.Public.String(), Control: inst.Control.String(), ReplicaAddress: inst.ReplicaAddress,
		Workers: inst.Workers, Handshakes: inst.Handshakes, Lanes: inst.Lanes, AccessLog: inst.AccessLog,
		PerTunnel: inst.GatewaysPerTunnel,
	}
}

// Profile returns the settings as a profile.
func (s Settings) Profile() Profile {
	text, err := json.Marshal(s)
	if err == nil {
		text, err = canonical(text)
	}
	if err != nil {
		panic(fmt.Sprintf("rollout: strings and numbers cannot be written as JSON: %v", err))
	}
	return Profile(text)
}

// Installation returns inst with these settings. It keeps the domain and the gateways of inst. If ReplicaAddress
// differs, it derives the gateways' own addresses from it. It returns an error if an address is not valid.
func (s Settings) Installation(inst model.Installation) (model.Installation, error) {
	var errs [2]error
	inst.Public, errs[0] = model.ParseEndpoint(s.Public)
	inst.Control, errs[1] = model.ParseEndpoint(s.Control)
	if err := errors.Join(errs[:]...); err != nil {
		return inst, fmt.Errorf("reading addresses of profile: %w", err)
	}
	inst.Workers, inst.Handshakes, inst.Lanes, inst.AccessLog = s.Workers, s.Handshakes, s.Lanes, s.AccessLog
	inst.GatewaysPerTunnel = s.PerTunnel
	if s.ReplicaAddress == inst.ReplicaAddress {
		return inst, nil
	}
	inst.ReplicaAddress = s.ReplicaAddress
	gateways := make([]model.Gateway, 0, len(inst.Gateways))
	for _, g := range inst.Gateways {
		var err error
		if g.Public, err = s.ReplicaAddress.Of(g.Name); err != nil {
			return inst, fmt.Errorf("reading replica address of profile: %w", err)
		}
		gateways = append(gateways, g)
	}
	inst.Gateways = gateways
	return inst, nil
}

// Settings decodes a profile. It ignores fields that this build does not know, and renders without them.
func (p Profile) Settings() (Settings, error) {
	var s Settings
	if err := json.Unmarshal([]byte(p), &s); err != nil {
		return s, fmt.Errorf("reading profile: %w", err)
	}
	return s, nil
}

// ID returns a short name of a profile, for users and for announcements of nodes; empty: there is no profile.
func (p Profile) ID() string {
	if p == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(p))
	return hex.EncodeToString(sum[:4])
}

// ParseProfile reads a profile that an xds-server announces. It returns an error if the text is too long or not a
// JSON object.
func ParseProfile(text string) (Profile, error) {
	if len(text) > maxProfile {
		return "", fmt.Errorf("a profile of %d bytes is longer than %d", len(text), maxProfile)
	}
	compact, err := canonical([]byte(text))
	return Profile(compact), err
}

// canonical returns a JSON object without spaces and with sorted keys.
func canonical(text []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, fmt.Errorf("reading profile: %w", err)
	}
	if fields == nil {
		return nil, errors.New("a profile is null")
	}
	return json.Marshal(fields)
}

// MarshalJSON implements json.Marshaler. A profile in a record is a JSON value that users can read.
func (p Profile) MarshalJSON() ([]byte, error) {
	if p == "" {
		return []byte("null"), nil
	}
	return []byte(p), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Profile) UnmarshalJSON(text []byte) error {
	if *p = ""; bytes.Equal(text, []byte("null")) {
		return nil
	}
	parsed, err := ParseProfile(string(text))
	*p = parsed
	return err
}
