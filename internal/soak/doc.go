// Package soak runs programs whose output is known with hundreds of probes at random
// instructions, and compares: what the program writes and its exit status with a run without
// probes, and how often each instruction ran with what others have counted.
//
// # Who says how often
//
// A Work has a referee.
//
//   - Callgrind counts each instruction of a deterministic program (valgrind
//     --tool=callgrind --dump-instr=yes), once for the whole run and once for a run that is
//     ended where the program has read the first half of its input and waits for the rest.
//     So probes that are armed or taken out at that moment are compared exactly too.
//   - Kernel: the kernel's uprobes count in a run of their own, from the program's first
//     instruction on, or from the middle. They are also asked where callgrind's count is not
//     ours, since its world is not quite the program's (see below).
//   - Nobody: only the output is compared.
//
// All runs get the same environment, that of a program under valgrind, no address is random
// (personality(2)), and hash seeds are fixed. The input comes through a pipe that holds all of
// a half, so that reads return the same pieces each time.
//
// # What is compared
//
// Every probe that is armed: Hits of an event, entries of a return probe (returns, unwound,
// active and missed), calls of a handler. An instruction that no run executes must count 0.
// Calls that are in progress, or left by longjmp, when the program ends are counted too: it is
// held at its end until they have been looked for. In a C program that uses no longjmp no
// call may have been left, and in no C program may an entry have been missed.
//
// Left out, each with its reason in the summary; how many were refused, are unsteady, were not armed
// or take no uprobe is bounded:
//
//   - instructions with a repeat prefix that touch strings: callgrind and the kernel count
//     iterations, which is not what a probe counts. They are never chosen; nor are resolvers of
//     IFUNCs, for which a probe stands at the function that they choose;
//   - the C library, its mathematics and OpenSSL's objects are not compared with callgrind:
//     they choose implementations by the CPU's features, and valgrind offers others. They are
//     compared with the kernel's count;
//   - the dynamic linker: its functions run before anything can be armed, and the kernel's
//     uprobes, which belong to a file, would act on every process;
//   - places where callgrind counts what ran before the program's entry point, when our
//     probes were not armed yet (constructors of objects), or counts otherwise for another
//     reason: the kernel's count must be ours there;
//   - places that the kernel itself counts otherwise from run to run (addresses, process ids,
//     times), or, in programs that have such places, of which callgrind and the kernel say
//     different things. They are told as unsteady;
//   - places in a program that asks who handles a signal: our handlers are in it, and it may go
//     another way. There the kernel's count must be ours in a run in which they are in it too, by an
//     event in another file. They are told as seen, and how many may be is bounded;
//   - probes that are put in or taken out in the middle of the program while a thread stands in
//     the bytes, or is to come back into them, and that are not armed until it has left;
//   - probes that come in the middle of the go command, which has no input that would hold it up,
//     and too late;
//   - places that are on the blacklist, or that no tactic serves.
//
// A uprobe and a probe of the engine's are never on one file at once: the programs and the objects
// that they map at their start are copied for each Stage, and the runs come one after another.
//
// # Visits
//
// Programs of many runtimes (OCaml, Haskell, JavaScript with and without its compiler, Java, Scheme, Lisp,
// Python with threads, children and signals, gcc's cc1) and servers with clients that check what they get
// (PostgreSQL under pgbench, nginx) run while the command kprobe comes to their processes again and again,
// as users do who know nothing of each other: it probes all functions, calls and returns, of the program
// or of a shared object, or random instructions in functions, and goes: by SIGINT, by its own --duration,
// or killed, in the middle of its arming or later. What a killed one has left is undone by kprobe detach
// or by the next visit. In other rounds kprobe starts the program (--).
//
// Output, files and exit status must be those of a run without probes; nobody may die; kprobe must end as
// it says; and where it has gone, the code in memory must be that of the files. What it refuses is
// told with its reason. A program that no visit could probe is a failure.
package soak
