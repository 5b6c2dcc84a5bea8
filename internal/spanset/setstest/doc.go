// Package setstest has tests of the sets of kprobe spans whose functions are those of modules: real programs that import them. It is a module of its own, so that nobody
// else needs those.
package setstest
