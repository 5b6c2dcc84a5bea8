// Package executables keeps the processes of one executable: those that run when it is opened, and those that come. Package process probes
// them; what is probed, and what becomes of the hits, is the caller's business (Options.Arm).
//
// A process that comes is met in its exec: fanotify(7) holds the exec of the file until it is permitted, which a Set does once it has attached to the
// thread (process.MeetExec). All other execs are permitted at once. A Set that is killed holds nothing up: the kernel permits what
// waits (fanotify_release in fs/notify/fanotify/fanotify_user.c).
//
// With Options.Command the processes are those of a program that is started, and of what descends from it: these are traced from exec to exec
// (process.Tree), which needs no privileges.
package executables
