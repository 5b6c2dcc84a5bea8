# Prints, at each hit of a breakpoint, its number and a line of JSON: the calls in progress, the innermost first, each with its function, how far
# behind its start it goes on, and its line; what was inlined stands with the call that it is in.
import gdb, json, os

known = {}


def symbol(at):
    if at not in known:
        words = gdb.execute("info symbol 0x%x" % at, to_string=True).split(" in section ")[0]
        name, _, off = words.partition(" + ")
        known[at] = (name, int(off) if off else 0)
    return known[at]


class Stack(gdb.Breakpoint):
    def __init__(self, place, n):
        super().__init__(place)
        self.n = n

    def stop(self):
        out, inlined, exact = [], [], True
        f = gdb.newest_frame()
        while f is not None and f.pc() != 0:
            line = f.find_sal().line
            if f.type() == gdb.INLINE_FRAME:
                inlined.append([f.name(), line])
            elif f.type() != gdb.TAILCALL_FRAME:  # gdb has worked it out: the caller has jumped away
                at = f.pc() if exact else f.pc() - 1
                name, off = ("<signal>", 0) if f.type() == gdb.SIGTRAMP_FRAME else symbol(at)
                out.append({"name": name, "off": off + f.pc() - at, "line": line, "inlined": inlined})
                inlined, exact = [], f.type() == gdb.SIGTRAMP_FRAME
            f = f.older()
        print("STACK %d %s" % (self.n, json.dumps(out)))
        return False


gdb.execute("set pagination off")
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
gdb.execute("set print thread-events off")
gdb.execute("handle SIGUSR1 SIGUSR2 SIGSEGV SIGURG nostop noprint pass")
for n, place in enumerate(os.environ["STACK_AT"].split(";")):
    Stack(place, n)
gdb.execute("run")
