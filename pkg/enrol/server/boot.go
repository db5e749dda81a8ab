package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// runningPause and endedPause are the pauses until a machine's next report, if nothing changes.
	runningPause, endedPause = 30 * time.Second, 2 * time.Minute
)

var (
	// machineRate limits one machine of one token: one report for each step of a boot. A machine chooses its own name,
	// so the rates of its address and of its token apply too.
	machineRate = limit.Rate{Every: 2 * time.Second, Burst: 30}
	// bootRate limits one token, and one address: 1,000 machines that boot at the same time, each with a step every 5
	// s.
	bootRate = limit.Rate{Every: 5 * time.Millisecond, Burst: 400}
	// endRate limits how often the end of one boot is logged, and endsRate the logged ends of boots with one token.
	endRate  = limit.Rate{Every: time.Hour, Burst: 1}
	endsRate = limit.Rate{Every: 10 * time.Second, Burst: 50}
)

// ReportTokens looks up the hashes of tokens for boot reports. For an unknown hash the error is enrol.ErrUnknownToken.
type ReportTokens interface {
	ReportToken(hash string) (enrol.Grant, error)
}

// Boots stores boot reports.
type Boots interface {
	// Boot stores a report for the tunnel with this id, and reports whether a controller receives it. An error is a
	// gRPC status.
	Boot(id string, report *reportv1.BootReport) (watched bool, err error)
}

// BootConfig are the dependencies of a Server that accepts boot reports.
type BootConfig struct {
	Tokens ReportTokens
	Boots  Boots
}

// ReportBoot implements the service.
func (s *Server) ReportBoot(ctx context.Context, r *enrolv1.ReportBootRequest) (*enrolv1.ReportBootResponse, error) {
	if s.config.Boot == nil {
		return nil, status.Error(codes.Unimplemented, "this server does not accept boot reports")
	}
	caller := address(ctx)
	done := s.limits.inFlight.Take(caller)
	if done == nil {
		return nil, retry.Later("the server has too many requests at the moment", busyTime)
	}
	defer done()
	log := s.config.Log.With("address", remote(ctx))
	grant, hash, err := s.checkReportToken(r.GetToken())
	if err != nil {
		return nil, s.reject(log, caller, err)
	}
	host := r.GetReport().GetMachine().GetHostname()
	if err := s.limits.boot(caller, hash, host); err != nil {
		return nil, err
	}
	watched, err := s.config.Boot.Boots.Boot(grant.ID, r.GetReport())
	if err != nil {
		return nil, s.reject(log.With("cluster", grant.Tunnel.String()), caller, err)
	}
	s.logBoot(log, grant, hash, r.GetReport())
	next := runningPause
	if r.GetReport().GetState() != reportv1.BootState_BOOT_STATE_RUNNING {
		next = endedPause
	}
	return &enrolv1.ReportBootResponse{Next: durationpb.New(next), Watched: watched}, nil
}

// checkReportToken checks the token of a boot report, and returns its grant and hash.
func (s *Server) checkReportToken(token string) (enrol.Grant, string, error) {
	if !enrol.IsReportToken(token) {
		return enrol.Grant{}, "", status.Error(codes.Unauthenticated, "the token is not a Fairlead token for boot reports")
	}
	hash := enrol.HashToken(token)
	grant, err := s.config.Boot.Tokens.ReportToken(hash)
	if err != nil {
		return enrol.Grant{}, "", outcome(err, "cannot check tokens at the moment")
	}
	return grant, hash, nil
}

// logBoot logs how the boot of a machine ended. It limits repetitions, because a machine repeats its report, and the
// number of machines, because the holder of a token can invent any number of them. It logs only the name of the
// machine, which was validated, and the result.
func (s *Server) logBoot(log *slog.Logger, grant enrol.Grant, hash string, r *reportv1.BootReport) {
	if r.GetState() == reportv1.BootState_BOOT_STATE_RUNNING {
		return
	}
	host := r.GetMachine().GetHostname()
	if s.limits.bootTokens.Peek(hash, endsRate) > 0 ||
		s.limits.bootEnds.Take(hash+" "+host+" "+r.GetState().String(), endRate) > 0 {
		return
	}
	if s.limits.bootTokens.Take(hash, endsRate) == 0 {
		log.Info("machine reported the end of its boot", "cluster", grant.Tunnel.String(), "host", host,
			"failed", r.GetState() == reportv1.BootState_BOOT_STATE_FAILED)
	}
}

// boot counts a report. It returns a status if a limit is exceeded.
func (l *limits) boot(address, hash, host string) error {
	if len(host) > enrol.MaxHost {
		host = "" // rejected a moment later
	}
	for key, rate := range map[string]limit.Rate{"token " + hash: bootRate, "address " + address: bootRate, "machine " +
		hash + " " + host: machineRate} {
		if wait := l.boots.Take(key, rate); wait > 0 {
			return retry.Later("too many boot reports", wait)
		}
	}
	return nil
}
