// Functions with switches and other indirect jumps, for the control-flow analysis. run
// drives each with every input that matters; the test steps through it.
//
// build: -Wno-implicit-fallthrough -Wno-unused-but-set-variable

typedef unsigned char u8;
typedef unsigned long u64;

#define FN __attribute__((noinline))

volatile int sink;

static FN int callee(int x) { return x * 3 + sink; }
static FN __attribute__((cold)) int rare(int x) { sink = x; return x ^ 0x55; }

FN int sw_dense(int x)
{
	switch (x) {
	case 0: return callee(7);
	case 1: return callee(x) + 1;
	case 2: sink = 3; return 11;
	case 3: return callee(x + 5) * 2;
	case 4: sink += 9; return 4;
	case 5: return callee(1) - callee(2);
	case 6: sink ^= 1; return -6;
	case 7: return callee(sink);
	}
	return -1;
}

FN int sw_offset_gaps(long x)
{
	int r = 0;
	switch (x) {
	case 100: r = callee(1); break;
	case 101: r = callee(2) + 4; break;
	case 103: r = callee(3) ^ 9;
	case 104: r += callee(4); break;
	case 107: r = sink; break;
	case 109: r = callee(6) * 7; break;
	case 110: return callee(9);
	default: r = callee(10); break;
	}
	return r + callee(r);
}

FN int sw_char(u8 c)
{
	switch (c) {
	case 'a': return callee(1);
	case 'b': return callee(2) + 1;
	case 'c': return callee(3) - 1;
	case 'e': return callee(4) * 3;
	case 'g': return callee(5) ^ 2;
	case 'h': sink = c; return 8;
	case 'k': return callee(7) | 1;
	}
	return callee(c);
}

FN int sw_mask(unsigned x)
{
	switch (x & 7) {
	case 0: return callee(5);
	case 1: return callee(x) + 2;
	case 2: sink = 4; return 1;
	case 3: return callee(x ^ 3);
	case 4: return callee(8) - 3;
	case 5: sink = 1; return 9;
	case 6: return callee(6) * 5;
	case 7: return callee(4) & 3;
	}
	return 0;
}

FN int sw_unreachable(unsigned x)
{
	switch (x) {
	case 0: return callee(3);
	case 1: return callee(1) + 5;
	case 2: sink = 8; return 2;
	case 3: return callee(x);
	case 4: return callee(2) * 9;
	case 5: sink = 6; return 7;
	default: __builtin_unreachable();
	}
}

FN int sw_loop(const u8 *s, const int *more)
{
	int state = 0, n = 0;
	for (; *s; s++) {
		switch (*s - '0') {
		case 0: state = callee(state); break;
		case 1: n += state; continue;
		case 2: state ^= n; break;
		case 3: if (more[0]) n++; break;
		case 4: n = callee(n) - state; break;
		case 5: state = 3; continue;
		case 6: n *= 3; break;
		case 7: return n;
		default: state++;
		}
		switch (more[n & 3]) {
		case 10: n++; break;
		case 11: n = callee(n); break;
		case 12: state += 2; break;
		case 13: state = callee(state); break;
		case 14: n ^= 0x11; break;
		case 15: n -= state; break;
		}
	}
	return n + state;
}

FN int sw_cold(int x, int y)
{
	switch (x) {
	case 0: return callee(y);
	case 1: if (y > 100) return rare(y); return callee(1);
	case 2: return rare(x + y);
	case 3: return callee(x - y) + 3;
	case 4: return rare(3) + 4;
	case 5: sink = y; return 6;
	case 6: return callee(9) + y;
	}
	return rare(x);
}

// Interpreters: gcc's labels as values, from one table, through pointers, and as
// differences.
FN int goto_table(const u8 *code)
{
	static const void *const ops[] = { &&add, &&sub, &&dbl, &&call, &&jump, &&end };
	int acc = 1;
#define NEXT goto *ops[*code++]
	NEXT;
add:	acc += 2; NEXT;
sub:	acc -= 5; NEXT;
dbl:	acc *= 2; NEXT;
call:	acc = callee(acc); NEXT;
jump:	code++; NEXT;
end:	return acc;
#undef NEXT
}

FN int goto_threaded(const u8 *code)
{
	static const void *const ops[] = { &&add, &&sub, &&dbl, &&call, &&end };
	const void *prog[16];
	const void *const *pc = prog;
	int n = 0, acc = 1;
	do prog[n] = ops[*code]; while (n++ < 15 && *code++ != 4);
	goto **pc++;
add:	acc += 2; goto **pc++;
sub:	acc -= 5; goto **pc++;
dbl:	acc *= 2; goto **pc++;
call:	acc = callee(acc); goto **pc++;
end:	return acc;
}

FN int goto_offsets(const u8 *code)
{
	static const int ops[] = { &&add - &&add, &&sub - &&add, &&call - &&add, &&end - &&add };
	int acc = 1;
	goto *(&&add + ops[*code++]);
add:	acc += 2; goto *(&&add + ops[*code++]);
sub:	acc -= 5; goto *(&&add + ops[*code++]);
call:	acc = callee(acc); goto *(&&add + ops[*code++]);
end:	return acc;
}

// Indirect tail calls.
typedef int (*fn)(int);
struct ops { int pad; fn f; fn table[3]; };
static FN int fa(int x) { return x + 1; }
static FN int fb(int x) { return x * 2; }
static FN int fc(int x) { return x - 3; }
fn global_fn = fb;
static fn const fns[] = { fa, fb, fc };

FN int tail_arg(fn f, int x) { return f(x); }
FN int tail_member(struct ops *o, int x) { return o->f(x); }
FN int tail_frame(struct ops *o, int x) { int y = callee(x); return o->f(x + y); }
FN int tail_global(int x) { return global_fn(x); }
FN int tail_array(unsigned i, int x) { return i < 3 ? fns[i](x) : 0; }
FN int tail_struct_array(struct ops *o, long i, int x) { return o->table[i](x); }
FN int tail_direct(int x) { return callee(x + 1); }

FN int run(void)
{
	static const int more[] = { 10, 11, 12, 13 }, more2[] = { 14, 15, 9, 16 };
	static const u8 prog[] = { 0, 1, 2, 3, 4, 9, 0, 1, 5 };
	static const u8 thread[] = { 0, 1, 2, 3, 0, 3, 4 }, offs[] = { 0, 1, 2, 0, 2, 1, 3 };
	struct ops o = { 0, fa, { fa, fb, fc } };
	int i, r = 0;
	for (i = -3; i < 12; i++)
		r += sw_dense(i) + sw_mask(i) + sw_cold(i, 5) + sw_cold(i, 500);
	for (i = 95; i < 115; i++)
		r += sw_offset_gaps(i);
	for (i = 0; i < 256; i++)
		r += sw_char(i);
	for (i = 0; i < 6; i++)
		r += sw_unreachable(i);
	r += sw_loop((const u8 *)"0123456890642315", more);
	r += sw_loop((const u8 *)"6543210098712345667", more2);
	for (i = 9; i < 17; i++) {
		int m[4] = { i, i, i, i };
		r += sw_loop((const u8 *)"!02468", m);
	}
	r += goto_table(prog) + goto_threaded(thread) + goto_offsets(offs);
	r += tail_arg(fc, 3) + tail_member(&o, 4) + tail_frame(&o, 5) + tail_global(6);
	for (i = 0; i < 4; i++)
		r += tail_array(i, 7);
	for (i = 0; i < 3; i++)
		r += tail_struct_array(&o, i, 7);
	return r + tail_direct(8);
}

int main(void)
{
	sink = run() & 0;
	return 0;
}
