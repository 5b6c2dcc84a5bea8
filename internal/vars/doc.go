// Package vars says what the names of a program stand for where a probe is: parameters, results and variables of the program, and
// what is in them. It asks debug information for names and types, and the calling convention for places that debug information
// does not tell.
package vars
