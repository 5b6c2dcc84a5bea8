// Package ringpage writes hits of events as the kernel's ring buffer has them, and reads such pages: the binary form that
// trace_pipe_raw gives and that trace.dat files hold. The source is kernel/trace/ring_buffer.c and
// include/linux/ring_buffer.h of Linux 6.18, on a little-endian machine of 64 bits with pages of 4 KiB.
//
// A page is
//
//	 0  u64      timestamp of the page, in nanoseconds
//	 8  u64      commit: bits 0 to 19 are the bytes of records that follow;
//	             bit 31: records were lost before this page; bit 30: their number follows the records, as a u64
//	16  records
//
// and a record begins with a word: 5 bits of type_len, 27 bits of time_delta, the nanoseconds since the record before it.
//
//	type_len  the record is
//	0         data, of which the next word says how many bytes they take with that word
//	1 to 28   4*type_len bytes of data
//	29        padding: of as many bytes as the next word says; time_delta 0: nothing follows in the page
//	30        nothing but time: the next word has the higher bits of time_delta
//	31        nothing but time, as 30, and that is no difference but the time itself
package ringpage
