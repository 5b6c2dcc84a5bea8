// Package holder is how a process that wants something of a target comes to the process that holds the target: the
// holder. It finds it, starts one, tells it a command line with the files that belong to it, and waits for the end. It knows
// nothing of probes.
//
// A holder listens on a socket of Linux's abstract name space (unix(7)), whose name has its process id and the time of its start. Anybody may take such a
// name: who connects asks the kernel for the id of the process at the other end, and accepts that of the holder only. A holder
// serves its own user, who must besides show an open /proc/PID/mem of the target: the kernel lets those open it that may trace it.
package holder
