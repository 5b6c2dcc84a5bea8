// Package testguest boots a Linux guest for tests: Debian's cloud kernel and busybox,
// fetched from Debian's archive by apt-get and unpacked into the user's cache, never installed,
// and an agent of our own that does in the guest what a test asks for.
package testguest
