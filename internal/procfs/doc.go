// Package procfs reads what /proc/PID tells of a process: its mappings, the state of its threads,
// who holds it for probes. Free addresses are found between the mappings. It knows no probe.
package procfs
