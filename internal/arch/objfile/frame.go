package objfile

// FrameRule tells how to get from a frame to that of its caller: where the caller's stack pointer was before the call (the
// CFA), and where its frame pointer is. The return address lies right below the CFA.
type FrameRule struct {
	CFA   FrameCFA
	Off   int32 // bytes
	FP    FrameFP
	FPOff int32 // bytes
}

// FrameCFA says what a CFA is.
type FrameCFA uint8

// The ways to a CFA.
const (
	FrameUnknown FrameCFA = iota // it can not be told
	FrameBySP                    // Off from the stack pointer
	FrameByFP                    // Off from the frame pointer
	FrameAtFP                    // the word at Off from the frame pointer
	FrameLink                    // that of a frame that begins with its caller's frame pointer, wherever on a stack that is
	FrameSignal                  // the frame was made by the kernel for a signal; the whole context lies at the stack pointer
	FrameEnd                     // there is no caller
)

// FrameFP says where the caller's frame pointer is.
type FrameFP uint8

// The places of a caller's frame pointer.
const (
	FPSame  FrameFP = iota // in the register
	FPAtCFA                // in the word at FPOff from the CFA
	FPAtFP                 // in the word at FPOff from the frame pointer
	FPLost                 // it can not be told
)
