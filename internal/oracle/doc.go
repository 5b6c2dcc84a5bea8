// Package oracle lets a Linux kernel judge our language. It gives the same definitions to a
// guest kernel's own kprobe_events and to a trace instance of this package on that guest, and
// compares what both say: the errno of the write, the entry in error_log with its command and
// the column of its caret, the listing, the format files, and the trace lines of the same
// calls.
//
// Ours is the language of Linux 6.18, and the judge may be an older kernel; so there are
// differences. Each has its row, with the reason in words, in testdata/differences.txt. A
// difference without a row fails the test, and so does, where all cases run, a row that no difference needs.
package oracle
