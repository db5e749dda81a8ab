package retry

import (
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxAsked bounds the wait that a server can request.
const maxAsked = time.Minute

// Later returns a gRPC status for a caller that calls too often: codes.ResourceExhausted with the time after which it
// may retry.
func Later(text string, wait time.Duration) error {
	s, err := status.New(codes.ResourceExhausted, text+", try again later").
		WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	if err != nil {
		return status.Error(codes.ResourceExhausted, text)
	}
	return s.Err()
}

// RequestedWait returns the time that a gRPC status asks its caller to wait, or 0 if it names none.
func RequestedWait(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// WaitFor returns the wait after an attempt that failed with err. It is Wait, or the time that err asks for if that is
// longer, up to a minute. The requested time is lengthened by up to half at random, so that callers that were rejected
// together do not come back together.
func (b Backoff) WaitFor(attempt int, err error) time.Duration {
	own, asked := b.Wait(attempt), min(RequestedWait(err), maxAsked)
	if asked <= 0 {
		return own
	}
	return max(own, asked+rand.N(asked/2+1))
}
