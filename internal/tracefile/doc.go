// Package tracefile is the tree of files of a trace instance, as tracefs and debugfs have them (Linux 6.18): names, modes, what reading
// gives, and what writing does. It serves nobody itself: packages tracefs (FUSE) and debughttp do.
package tracefile
