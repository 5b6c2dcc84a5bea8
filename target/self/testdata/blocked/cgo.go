//go:build cgo

package main

/*
#include <pthread.h>
#include <signal.h>

extern void goCallback(void);

static void *body(void *arg) {
	raise(SIGUSR1);
	goCallback();
	raise(SIGUSR1);
	return 0;
}

static int oneThread(void) {
	pthread_t t;
	int err = pthread_create(&t, 0, body, 0);
	return err ? err : pthread_join(t, 0);
}
*/
import "C"

import "log"

var callbacks int

//export goCallback
func goCallback() { callbacks++ }

// foreign lets a thread of C call into Go and get signals.
func foreign() {
	before := callbacks
	if e := C.oneThread(); e != 0 || callbacks != before+1 {
		log.Fatalf("error %d, %d callbacks", e, callbacks-before)
	}
}
