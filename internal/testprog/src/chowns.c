// build: -fcf-protection=branch
// Calls of functions that have the names of functions of the kernel, which begin with an endbr64 as the kernel's do.
//
//	chowns   commands: chown N, sync N, quit
//
// "chown" makes N calls of do_fchownat that fail, with ENOENT, "sync" N of ksys_sync, which does nothing. The answer has the calls of
// both so far.
#include <errno.h>
#include <fcntl.h>

#include "prog.h"

static uint64_t chowns, syncs;

NOINLINE int do_fchownat(int dfd, const char *filename, unsigned user, unsigned group, int flag) {
	chowns++;
	return fchownat(dfd, filename, user, group, flag) ? -errno : 0;
}

NOINLINE void ksys_sync(void) {
	syncs++;
}

int main(void) {
	char line[256];
	say("ready");
	while (command(line) && !is(line, "quit")) {
		for (uint64_t n = is(line, "chown") ? number(line, "chown", 1) : 0; n > 0; n--)
			if (do_fchownat(AT_FDCWD, "/no/such", 7, 8, AT_SYMLINK_NOFOLLOW) != -ENOENT)
				die("/no/such");
		for (uint64_t n = is(line, "sync") ? number(line, "sync", 1) : 0; n > 0; n--)
			ksys_sync();
		say("{\"chowns\":%" PRIu64 ",\"syncs\":%" PRIu64 "}", chowns, syncs);
	}
	say("{}");
	return 0;
}
