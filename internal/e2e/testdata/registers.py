# Run by gdb: stops the program at the first run of each place and writes its registers.
# PLACES holds addresses in hexadecimal, one a line; RECORDS gets an address and the
# registers a line. With MAIN only what the first thread does counts, with TIMES so many runs of a
# place are written, if there are so many.
import os

import gdb

REGS = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp"] + ["r%d" % i for i in range(8, 16)] + ["eflags"]
MAIN = "MAIN" in os.environ
TIMES = int(os.environ.get("TIMES", "1"))
records = open(os.environ["RECORDS"], "w")


class Place(gdb.Breakpoint):
    def __init__(self, addr):
        super().__init__("*0x" + addr, internal=True)
        self.addr = addr
        self.left = TIMES

    def stop(self):
        if MAIN and gdb.selected_thread().num != 1:
            return False
        frame = gdb.newest_frame()
        values = ["%x" % (int(frame.read_register(r)) & (1 << 64) - 1) for r in REGS]
        records.write(" ".join([self.addr] + values) + "\n")
        self.left -= 1
        self.enabled = self.left > 0
        return False


for setting in [
    "pagination off",
    "startup-with-shell off",
    "disable-randomization on",
    "breakpoint always-inserted on",
    "print thread-events off",
    "debuginfod enabled off",
    "auto-load off",
]:
    gdb.execute("set " + setting)
for name in ["LINES", "COLUMNS", "MAIN", "PLACES", "RECORDS", "TIMES"]:
    gdb.execute("unset environment " + name)
gdb.execute("starti")
places = [Place(line.strip()) for line in open(os.environ["PLACES"])]
gdb.execute("continue")
records.close()
