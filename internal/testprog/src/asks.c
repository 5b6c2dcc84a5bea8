// A program that asks who handles each signal, and goes one way where somebody does, and another
// where nobody does. What it writes does not tell which.
#include <signal.h>
#include <stdio.h>

static volatile int sink;

__attribute__((noinline)) void handled(int sig) { sink += sig; }

__attribute__((noinline)) void unhandled(int sig) { sink -= sig; }

int main(void)
{
	for (int round = 0; round < 10; round++)
		for (int sig = 1; sig <= 64; sig++) {
			struct sigaction now;
			if (sigaction(sig, NULL, &now) != 0)
				continue;
			if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)
				unhandled(sig);
			else
				handled(sig);
		}
	puts("asked");
	return 0;
}
