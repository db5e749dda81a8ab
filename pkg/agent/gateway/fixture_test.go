package gateway

import "github.com/fairlead/fairlead/pkg/model"

const domain model.TunnelDomain = "tunnels.example.com"

const name = "gateway-0"
