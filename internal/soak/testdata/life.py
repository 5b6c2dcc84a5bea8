# Threads that come and go, children by posix_spawn and fork, and signals all the time.
import hashlib
import os
import signal
import subprocess
import sys
import threading

ticks = 0


def tick(_sig, _frame):
    global ticks
    ticks += 1


signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)


def work(i, out):
    d = hashlib.sha256()
    for k in range(200):
        d.update(("%d %d" % (i, k)).encode())
    out[i] = d.hexdigest()[:12]


for n in range(1, int(sys.argv[1]) + 1):
    out = {}
    ts = [threading.Thread(target=work, args=(i, out)) for i in range(8)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    status = os.waitpid(pid, 0)[1]
    said = subprocess.run(["/bin/echo", str(n)], capture_output=True, check=False)
    child = os.fork()
    if child == 0:
        os._exit(7)
    print(n, sorted(out.items()), status, said.returncode, said.stdout, os.waitpid(child, 0)[1], flush=True)
signal.setitimer(signal.ITIMER_REAL, 0)
print("ticked", ticks > 0)
