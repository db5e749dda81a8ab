package retry

import (
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxAsked is how long a wait is believed that somebody else asks for.
const maxAsked = time.Minute

// Later is the gRPC status for a caller that comes too often: codes.ResourceExhausted, with when it may come again.
func Later(text string, wait time.Duration) error {
	s, err := status.New(codes.ResourceExhausted, text+", try again later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	if err != nil {
		return status.Error(codes.ResourceExhausted, text)
	}
	return s.Err()
}

// Asked is how long a gRPC status asks its caller to wait, 0 if it does not say.
func Asked(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// WaitFor is Wait after an attempt that failed with an error, and not shorter than that asks for, within a minute. That is made
// longer by up to half at random: all who were turned away at one time would come back at one time.
func (b Backoff) WaitFor(attempt int, err error) time.Duration {
	own, asked := b.Wait(attempt), min(Asked(err), maxAsked)
	if asked <= 0 {
		return own
	}
	return max(own, asked+rand.N(asked/2+1))
}
