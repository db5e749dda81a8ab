package source

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// installation returns the installation of the fleet, or else of the objects, or else an example.
func (l *loader) installation() model.Installation {
	if l.fleet != nil && l.file.Domain != "" || l.fleet != nil && l.settings == nil {
		inst, errs := l.file.installation()
		for _, err := range errs {
			l.errs = append(l.errs, l.fleet.fault("", err))
		}
		return inst
	}
	inst := model.Installation{
		Domain:  "tunnels.example.com",
		Public:  model.Endpoint{Host: "gateway.example.com", Port: 443},
		Control: model.Endpoint{Host: "xds-server.fairlead-system.svc", Port: 18000},
	}
	if l.settings == nil {
		l.assumed = append(
			l.assumed,
			"tunnel domain tunnels.example.com and the public address gateway.example.com:443, because the input has no "+
				"ConfigMap "+v1alpha1.SettingsConfigMapName,
		)
	} else {
		l.applySettings(&inst)
	}
	if l.set == nil {
		inst.Gateways = []model.Gateway{{Name: "gateway-0"}}
		l.assumed = append(l.assumed, "one gateway, gateway-0, because the input has no StatefulSet "+gatewaySetName)
	} else {
		var err error
		if inst.Gateways, err = Gateways(l.set, model.ReplicaAddress(l.settings["REPLICA_ADDRESS"])); err != nil {
			l.errs = append(l.errs, l.setDoc.fault("", err))
		}
	}
	if len(l.errs) == 0 {
		if err := inst.Validate(); err != nil {
			l.errs = append(l.errs, fmt.Errorf("checking installation: %w", err))
		}
	}
	return inst
}

func (l *loader) applySettings(inst *model.Installation) {
	d := l.docs["settings"]
	inst.Domain = model.TunnelDomain(l.settings["TUNNEL_DOMAIN"])
	if err := inst.Domain.Validate(); err != nil {
		l.errs = append(l.errs, d.fault("data.TUNNEL_DOMAIN", err))
	}
	public, err := model.ParseEndpoint(l.settings["PUBLIC_ADDRESS"])
	if err != nil {
		l.errs = append(l.errs, d.fault("data.PUBLIC_ADDRESS", err))
	}
	inst.Public, inst.ReplicaAddress = public, model.ReplicaAddress(l.settings["REPLICA_ADDRESS"])
	for _, number := range []struct {
		name string
		into *int
	}{{"GATEWAY_WORKERS", &inst.Workers}, {"GATEWAYS_PER_TUNNEL", &inst.GatewaysPerTunnel}} {
		if text := l.settings[number.name]; text != "" {
			if *number.into, err = strconv.Atoi(text); err != nil {
				l.errs = append(l.errs, d.fault("data."+number.name, errors.New("is not a number")))
			}
		}
	}
}
