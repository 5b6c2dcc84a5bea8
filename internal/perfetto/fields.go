package perfetto

// The numbers of the fields that are written, of protos/perfetto/trace in Perfetto's source: trace.proto, trace_packet.proto, clock_snapshot.proto,
// interned_data/interned_data.proto and track_event/*.proto. They are part of a stable format.
const (
	tracePacket = 1

	packetClockSnapshot   = 6
	packetTimestamp       = 8
	packetSequenceID      = 10
	packetTrackEvent      = 11
	packetInternedData    = 12
	packetSequenceFlags   = 13
	packetDefaults        = 59
	packetTrackDescriptor = 60

	defaultsClockID = 58

	snapshotClocks  = 1
	snapshotPrimary = 2
	clockID         = 1
	clockTimestamp  = 2

	internedCategories  = 1
	internedNames       = 2
	internedAnnotations = 3
	internedID          = 1
	internedName        = 2

	eventCategories       = 3
	eventAnnotations      = 4
	eventType             = 9
	eventName             = 10
	eventTrack            = 11
	eventFlows            = 47
	eventTerminatingFlows = 48

	annotationName    = 1
	annotationUint    = 3
	annotationInt     = 4
	annotationText    = 6
	annotationEntries = 11
	annotationArray   = 12
	annotationOwnName = 10 // not interned

	trackUUID    = 1
	trackName    = 2
	trackProcess = 3
	trackThread  = 4
	trackParent  = 5

	processPID  = 1
	processName = 6

	threadPID  = 1
	threadTID  = 2
	threadName = 5
)

// Values of TrackEvent.Type.
const (
	sliceBegin = 1
	sliceEnd   = 2
	instant    = 3
)

// Values of TracePacket.SequenceFlags.
const (
	stateCleared = 1
	needsState   = 2
)

// Clocks (BuiltinClock).
const (
	clockRealtime  = 1
	clockMonotonic = 3
	clockBoottime  = 6
)
