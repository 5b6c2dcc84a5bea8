// Package guestkit makes Linux guests to be probed, for tests and for kprobe demo --guest:
// Debian's cloud kernel, fetched from Debian's archive by apt-get and unpacked into the user's
// cache, never installed; an initial RAM disk; and the line to an agent of our own in the guest.
package guestkit
