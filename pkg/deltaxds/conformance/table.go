package conformance

// abc is what most exchanges begin with.
var abc = map[string]int{"a": 1, "b": 1, "c": 1}

// exchanges is the table. The rules are in "How the client specifies what resources to return", "ACK and NACK semantics
// summary", "When to send an update", "Deleting resources" and "Unsubscribing from resources" of
// https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol, and in the comments of DeltaDiscoveryRequest.
var exchanges = []Exchange{
	{Rule: "a first request without names subscribes to all resources", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack, quiet,
	}},
	{Rule: "a first request with the wildcard subscribes to all resources", steps: []step{
		set(abc), subscribe("*"), expect("a=1", "b=1", "c=1"), ack, quiet,
	}},
	{Rule: "a wildcard gets a first response even if there is nothing", steps: []step{
		set(nil), subscribe("*"), expect(), ack, set(abc), expect("a=1", "b=1", "c=1"), ack,
	}},
	{Rule: "only what has changed is sent", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack,
		set(map[string]int{"a": 1, "b": 2, "c": 1}), expect("b=2"), ack, quiet,
	}},
	{Rule: "what is set again without a change is not sent", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack, set(abc), quiet,
	}},
	{Rule: "a resource that is gone is removed by name", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack,
		set(map[string]int{"b": 1, "c": 1}), expect("-a"), ack, quiet,
		set(abc), expect("a=1"), ack,
	}},
	{Rule: "changes that come while a response has no answer are sent together after it", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"),
		set(map[string]int{"a": 2, "b": 1, "c": 1}), set(map[string]int{"a": 3, "b": 2, "c": 1}), quiet,
		ack, expect("a=3", "b=2"), ack, quiet,
	}},
	{Rule: "a rejected version is not sent again", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack,
		set(map[string]int{"a": 2, "b": 1, "c": 1}), expect("a=2"), nack, quiet, set(map[string]int{"a": 2, "b": 1, "c": 1}),
		quiet, set(map[string]int{"a": 3, "b": 1, "c": 1}), expect("a=3"), ack,
	}},
	{Rule: "the content before a rejected one is sent, because the client may have discarded it", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack,
		set(map[string]int{"a": 2, "b": 1, "c": 1}), expect("a=2"), nack, set(abc), expect("a=1"), ack, quiet,
	}},
	{Rule: "a rejected resource does not hold back others, nor its own removal", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), nack,
		set(map[string]int{"a": 1, "b": 2, "c": 1}), expect("b=2"), ack,
		set(map[string]int{"b": 2, "c": 1}), expect("-a"), ack,
	}},
	{Rule: "a nonce that was never sent is no answer", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), invented,
		set(map[string]int{"a": 2, "b": 1, "c": 1}), quiet, ack, expect("a=2"), ack,
	}},
	{Rule: "the nonce of an earlier response is no answer", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack,
		set(map[string]int{"a": 2, "b": 1, "c": 1}), expect("a=2"), stale,
		set(map[string]int{"a": 3, "b": 1, "c": 1}), quiet, ack, expect("a=3"), ack, quiet,
	}},
	{Rule: "a client that returns with everything gets an empty response", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack, reconnect(nil), expect(), ack, quiet,
		set(map[string]int{"a": 2, "b": 1, "c": 1}), expect("a=2"), ack,
	}},
	{Rule: "a client that returns gets what has changed meanwhile", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack,
		away, set(map[string]int{"b": 1, "c": 2}), reconnect(nil, "*"), expect("-a", "c=2"), ack, quiet,
	}},
	{Rule: "a client that returns gets what it has lost, and what it has in another version", steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack,
		reconnect(map[string]string{"a": "", "b": "not a version"}), expect("a=1", "b=1"), ack, quiet,
	}},
	{Rule: "a client that has unsubscribed from all gets nothing, and everything when it subscribes again", steps: []step{
		set(abc), subscribe("*"), expect("a=1", "b=1", "c=1"), ack, unsubscribe("*"), quiet,
		set(map[string]int{"a": 2, "b": 1}), quiet, subscribe(), quiet, subscribe("*"), expect("a=2", "b=1"), ack, quiet,
	}},
	{Rule: "a client that unsubscribes from one of all resources is sent it again", steps: []step{
		set(abc), subscribe("*"), expect("a=1", "b=1", "c=1"), ack, unsubscribe("a"), expect("a=1"), ack, quiet,
	}},
	{Rule: "a name subscribes to one resource", Names: true, steps: []step{
		set(abc), subscribe("a"), expect("a=1"), ack,
		set(map[string]int{"a": 1, "b": 2, "c": 1}), quiet, set(map[string]int{"a": 2, "b": 2, "c": 1}), expect("a=2"), ack,
		set(map[string]int{"b": 2, "c": 1}), expect("-a"), ack, set(abc), expect("a=1"), ack, quiet,
	}},
	{Rule: "a client learns that a resource does not exist, and gets it when it does", Names: true, steps: []step{
		set(map[string]int{"b": 1}), subscribe("a"), expect("-a"), ack, set(abc), expect("a=1"), ack, quiet,
	}},
	{Rule: "a resource is sent to each request for its name", Names: true, steps: []step{
		set(abc), subscribe("a"), expect("a=1"), ack, subscribe("a", "b"), expect("a=1", "b=1"), ack, quiet,
	}},
	{Rule: "a client that has unsubscribed from a name gets no more of it", Names: true, steps: []step{
		set(abc), subscribe("a", "b"), expect("a=1", "b=1"), ack, unsubscribe("a"), quiet,
		set(map[string]int{"a": 2, "b": 2, "c": 1}), expect("b=2"), ack, unsubscribe("b"), quiet,
		set(map[string]int{"a": 3, "b": 3, "c": 1}), quiet, subscribe("b"), expect("b=3"), ack, quiet,
	}},
	{Rule: "a name adds to the subscription to all, which ends by itself", Names: true, steps: []step{
		set(abc), subscribe(), expect("a=1", "b=1", "c=1"), ack, subscribe("a"), expect("a=1"), ack,
		unsubscribe("*"), quiet, set(map[string]int{"a": 2, "b": 2, "c": 1}), expect("a=2"), ack,
		unsubscribe("a"), quiet, set(map[string]int{"a": 3, "b": 3, "c": 1}), quiet,
	}},
	{Rule: "a name that leaves the subscription to all is sent as a part of all", Names: true, steps: []step{
		set(abc), subscribe("*", "a"), expect("a=1", "b=1", "c=1"), ack, unsubscribe("a"), expect("a=1"), ack,
		set(map[string]int{"a": 2, "b": 1, "c": 1}), expect("a=2"), ack, quiet,
	}},
	{Rule: "a client that returns with names gets what has changed", Names: true, steps: []step{
		set(abc), subscribe("a", "b"), expect("a=1", "b=1"), ack,
		set(map[string]int{"a": 1, "b": 2, "c": 1}), expect("b=2"), ack, reconnect(nil, "a", "b", "c"), expect("c=1"), ack,
		set(map[string]int{"a": 1}), expect("-b", "-c"), ack, quiet,
	}},
}
