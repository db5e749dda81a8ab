package gateway

import "github.com/fairlead/fairlead/pkg/model"

const (
	domain model.TunnelDomain = "tunnels.example.com"
	name                      = "gateway-0"
)
