//go:build cgo && masks

package main

/*
#include <pthread.h>
#include <signal.h>

static void mask(int how) {
	sigset_t faults;
	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	sigaddset(&faults, SIGBUS);
	pthread_sigmask(how, &faults, 0);
}

static void block(void) { mask(SIG_BLOCK); }
static void unblock(void) { mask(SIG_UNBLOCK); }

static struct sigaction was;

static void default_action(void) {
	struct sigaction none = {.sa_handler = SIG_DFL};
	sigaction(SIGSEGV, &none, &was);
}

static void put_back(void) { sigaction(SIGSEGV, &was, 0); }

extern void lookAgain(void);

static void back(void) {
	lookAgain();
	mask(SIG_BLOCK);
	lookAgain();
	mask(SIG_UNBLOCK);
	lookAgain();
}

static void *begin(void *none) {
	back();
	return none;
}

static void thread(void) {
	pthread_t t;
	if (pthread_create(&t, 0, begin, 0) == 0)
		pthread_join(t, 0);
}
*/
import "C"

// What C does to the masks and handlers of threads between looks.
func init() {
	does["block"] = func(look func()) {
		look()
		C.block()
		look()
		C.unblock()
		look()
	}
	does["action"] = func(look func()) {
		look()
		C.default_action()
		look()
		C.put_back()
		look()
	}
	does["leave"] = func(look func()) {
		look()
		C.default_action()
	}
	does["return"] = func(look func()) {
		look()
		C.put_back()
	}
	does["back"] = func(look func()) {
		again = look
		C.back()
	}
	does["thread"] = func(look func()) {
		again = look
		C.thread()
	}
}

// again is what C calls: on a thread of Go's, and on one that C has made.
var again func()

//export lookAgain
func lookAgain() { again() }
