// Package kmod makes modules of C, as the documents of Kprobes have them, ready to be loaded into another program: the headers that they are
// compiled with, the object that a compiler makes of them, and its place in memory.
package kmod
