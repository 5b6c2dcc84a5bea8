# Makes threads, and processes by posix_spawn.
#
#	threads.py    commands: go N, quit
#
# "go N" starts N threads, which end, and N/4 processes, and counts both, and those of the processes that
# ended badly.
import json, os, sys, threading

def work():
    global ran
    ran += 1

ran = 0
print("ready", flush=True)
for line in sys.stdin:
    if line.startswith("quit"):
        break
    n, threads, bad = int(line.split()[1]), 0, 0
    for i in range(n):
        t = threading.Thread(target=work)
        t.start()
        t.join()
        threads += 1
        if i % 4 == 0:
            pid = os.posix_spawn("/bin/true", ["true"], {})
            bad += os.waitpid(pid, 0)[1] != 0
    print(json.dumps({"threads": threads, "spawned": (n + 3) // 4, "bad": bad + (ran != threads)}), flush=True)
    ran = 0
