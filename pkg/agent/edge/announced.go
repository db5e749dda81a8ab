package edge

import (
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// announcedFile holds the announced addresses of the gateways, latest first.
	announcedFile = "gateways.json"
	// maxAnnounced bounds their number. It is enough for many replicas with an address of their own.
	maxAnnounced = 16
)

// announced stores the addresses of the gateways that the xds-server gives to Envoy, and makes the agent dial them
// after the addresses of its bootstrap file. So an edge reaches the control channel, and can renew its certificate,
// when the address of its bootstrap file is gone. An address that is no longer announced stays until maxAnnounced newer
// ones replace it: it is dialled only when the others do not answer, and the control channel is authenticated.
type announced struct {
	path   string // of announcedFile; empty: not persisted
	domain model.TunnelDomain
	dialer *dial.Dialer
	log    *slog.Logger

	mu  sync.Mutex
	all []model.Endpoint
}

// announcedState is the content of announcedFile.
type announcedState struct {
	Domain    model.TunnelDomain `json:"domain"`
	Addresses []string           `json:"addresses"`
}

// load reads the addresses of earlier runs. It ignores the file of another installation and a damaged one: the next
// configuration replaces it.
func (a *announced) load() {
	data, err := os.ReadFile(a.path)
	var stored announcedState
	if err != nil || json.Unmarshal(data, &stored) != nil || stored.Domain != a.domain {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, address := range stored.Addresses[:min(len(stored.Addresses), maxAnnounced)] {
		if e, err := model.ParseEndpoint(address); err == nil {
			a.all = append(a.all, e)
		}
	}
	a.dialer.SetMore(a.all)
}

// add stores addresses, unless all of them are stored already or are in the bootstrap file.
func (a *announced) add(addresses []model.Endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	added := slices.DeleteFunc(slices.Clone(addresses), func(e model.Endpoint) bool {
		return slices.Contains(a.all, e) || slices.Contains(a.dialer.Addresses, e)
	})
	if len(added) == 0 {
		return
	}
	a.all = append(added, a.all...)
	a.all = a.all[:min(len(a.all), maxAnnounced)]
	a.dialer.SetMore(a.all)
	a.log.Info("gateways have a new address; it is dialled if those of the bootstrap file do not answer", "address", added)
	if err := a.save(); err != nil {
		a.log.Warn("cannot persist new address of the gateways: the next start does not dial it", "error", err)
	}
}

func (a *announced) save() error {
	if a.path == "" {
		return nil
	}
	state := announcedState{Domain: a.domain}
	for _, e := range a.all {
		state.Addresses = append(state.Addresses, e.String())
	}
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return disk.Replace(a.path, data)
}
