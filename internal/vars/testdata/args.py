# Run by gdb: writes the parameters of functions at each of their runs, as a record of $arg* shows them.
# PLACES holds the addresses of functions in hexadecimal, one a line. RECORDS gets a line of JSON for a run: the address, and of
# each parameter (with VARS, of each variable there) the text, or null where gdb has no value, or one of a kind that is not recorded as a whole.
import json
import os

import gdb

records = open(os.environ["RECORDS"], "w")
VARS = os.environ.get("VARS")
INTS = (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_BOOL, gdb.TYPE_CODE_CHAR, gdb.TYPE_CODE_RANGE)


def quoted(b):
    out = '"'
    for c in b:
        if chr(c) in '"\\':
            out += "\\"
        out += chr(c) if 32 <= c < 127 else {9: "\\t", 10: "\\n"}.get(c, "\\x%02x" % c)
    return out + '"'


def read(addr, n):
    return gdb.selected_inferior().read_memory(addr, n).tobytes() if n else b""


def text_of(v, lang):
    t = v.type.strip_typedefs()
    if t.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
        return text_of(v.referenced_value(), lang)
    if t.code in INTS:
        n = int(v)
        if lang in ("c", "c++") and t.sizeof == 1 and t.name == "char":
            n &= 255
            return repr(chr(n)) if 32 <= n < 127 else "'\\x%02x'" % n
        return str(n)
    if t.code == gdb.TYPE_CODE_PTR:
        return "0x%x" % int(v)
    if t.code == gdb.TYPE_CODE_STRUCT and lang == "go" and t.name == "string":
        return quoted(read(int(v["str"]), int(v["len"])))
    if t.code == gdb.TYPE_CODE_STRUCT and lang == "rust" and t.name == "&str":
        return quoted(read(int(v["data_ptr"]), int(v["length"])))
    return None


def symbols(frame):
    block, seen = frame.block(), set()
    while True:
        for s in block:
            if s.is_argument or VARS and s.is_variable and s.name not in seen:
                seen.add(s.name)
                yield s
        if not VARS or block.function is not None:
            return
        block = block.superblock


class Place(gdb.Breakpoint):
    def __init__(self, addr):
        super().__init__("*0x" + addr, internal=True)
        self.addr = addr

    def stop(self):
        frame = gdb.newest_frame()
        values = {}
        for s in symbols(frame):
            try:
                v = s.value(frame)
                values[s.name] = None if v.is_optimized_out else text_of(v, frame.language())
            except (gdb.error, RuntimeError):
                values[s.name] = None
        records.write(json.dumps({"at": self.addr, "values": values}) + "\n")
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
gdb.execute("unset environment")
gdb.execute("set environment GOGC=off")
gdb.execute("starti")
places = [Place(a) for a in open(os.environ["PLACES"]).read().split()]
gdb.execute("continue")
records.close()
