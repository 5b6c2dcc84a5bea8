/*
 * Runs single instructions from given register states and tells what they did.
 *
 * Descriptor 3 holds a header and runs (struct run), descriptor 4 has room for the
 * results (struct result), two for each run: one of the original instruction, one of
 * its copy. Both are mapped. Every run starts by returning from a signal handler whose
 * frame was filled with the state, and ends with the signal that comes next: a
 * breakpoint, with which all code pages are filled, or a fault of the instruction.
 *
 * Built without a C library: nothing here may depend on %fs, which the runs use.
 */
#include "bare.h"

struct run {
	u64 regs[16]; /* by the number that instructions encode */
	u64 flags;
	u64 seed; /* of memory and vector registers */
	u64 base; /* of the code, landing and data areas */
	u64 pc[2];
	u64 slot; /* 8 bytes left out of result.slotmem */
	u64 len[2];
	u8 code[2][64];
};

struct result {
	u64 regs[16];
	u64 flags, pc, sig, sigcode, addr;
	u64 vec, mem, slotmem;
};

/* Areas, from base; reloc_exec_test.go knows them too. */
enum {
	CODE = 0x10000000, CODE_LEN = 0x2000,
	LAND = 0x20000000, LAND_LEN = 0x10000,
	DATA = 0x30000000, DATA_LEN = 0x6000,
	NEAR = 0x50000000,
};
#define FAR 0x200000000ull

static const struct run *runs;
static struct result *results;
static u64 *progress, nruns, current, total, fsbase;
static u8 altstack[1 << 18] __attribute__((aligned(64)));
static int started;

/* Every fourth word of memory is a landing address. */
static void fill_data(const struct run *r)
{
	u64 s = r->seed, *w = (u64 *)(r->base + DATA);
	for (int i = 0; i < DATA_LEN / 8; i++) {
		u64 v = rnd(&s);
		w[i] = i % 4 ? v : r->base + LAND + (v & (LAND_LEN - 1) & ~7ull);
	}
}

/* Left out: the instruction pointer of x87, which tells where the copy is. */
static u64 hash_vectors(u8 *fp)
{
	u64 bv = *(u64 *)(fp + 512), h = 1;
	h = mix(h, fp, 8);
	h = mix(h, fp + 16, 416 - 16);
	for (int c = 2; c < 8; c++)
		if (have >> c & 1 && bv >> c & 1)
			h = mix(h, fp + place[c].off, place[c].len);
	return h ^ (bv & have);
}

static void record(struct ucontext *uc, struct siginfo *si)
{
	struct result *o = &results[current];
	const struct run *r = &runs[current / 2];
	for (int i = 0; i < 16; i++)
		o->regs[i] = *reg(uc, i);
	o->flags = uc->eflags;
	o->pc = uc->rip;
	o->sig = si->signo;
	o->sigcode = (unsigned)si->code;
	o->addr = si->addr;
	o->vec = hash_vectors(uc->fpstate);
	o->mem = mix(0, (void *)(r->base + DATA), DATA_LEN);
	o->slotmem = o->mem;
	if (r->slot >= r->base + DATA && r->slot + 8 <= r->base + DATA + DATA_LEN) {
		fill((u8 *)r->slot, 0, 8);
		o->slotmem = mix(0, (void *)(r->base + DATA), DATA_LEN);
	}
	fill((u8 *)r->pc[current & 1], 0xcc, sizeof r->code[0]);
}

static void prepare(struct ucontext *uc)
{
	const struct run *r = &runs[current / 2];
	int side = current & 1;
	if (r->base + DATA != fsbase) {
		fsbase = r->base + DATA;
		sys(158, 0x1002, fsbase + DATA_LEN / 2, 0, 0, 0, 0); /* ARCH_SET_FS */
		sys(158, 0x1001, fsbase + DATA_LEN / 2, 0, 0, 0, 0); /* ARCH_SET_GS */
	}
	fill_data(r);
	fill_vectors(uc->fpstate, r->seed);
	copy((void *)r->pc[side], r->code[side], r->len[side]);
	for (int i = 0; i < 16; i++)
		*reg(uc, i) = r->regs[i];
	uc->eflags = r->flags;
	uc->rip = r->pc[side];
}

__attribute__((used)) void on_signal(int sig, struct siginfo *si, struct ucontext *uc)
{
	(void)sig;
	if (!started) {
		started = 1;
		/* sw_reserved of the legacy area: magic, size, features */
		if (*(uint32_t *)(uc->fpstate + 464) == 0x46505853)
			find_components(*(u64 *)(uc->fpstate + 472));
	} else {
		record(uc, si);
		current++;
	}
	*progress = current;
	if (current == total)
		quit(0);
	prepare(uc);
}

/* The instruction may have left alignment checks on. */
__asm__(
	".text\n"
	"entry: pushq $2\n\tpopfq\n\tjmp on_signal\n"
	"restore: movl $15, %eax\n\tsyscall\n"
	".globl _start\n"
	"_start: andq $-16, %rsp\n\tcall begin\n");
extern void entry(int, void *, void *) __attribute__((visibility("hidden")));
extern void restore(void) __attribute__((visibility("hidden")));

static void areas(u64 base)
{
	static const u64 code[] = { CODE, LAND, NEAR, FAR };
	for (int i = 0; i < 4; i++) {
		u64 len = code[i] == LAND ? LAND_LEN : CODE_LEN;
		/* private, anonymous, fixed without replacing */
		fill(map(base + code[i], len, 7, 0x100022, -1), 0xcc, len);
	}
	map(base + DATA, DATA_LEN, 3, 0x100022, -1);
}

__attribute__((used)) void begin(void)
{
	struct stack ss = { altstack, 0, sizeof altstack };
	struct kernel_sigaction sa = { entry, SA_SIGINFO | SA_RESTORER | SA_ONSTACK, restore, { ~0ull } };
	static const int sigs[] = { 4, 5, 7, 8, 11 };
	u64 cpu = 1, header[4];
	if (sys(0, 3, (u64)header, sizeof header, 0, 0, 0) != sizeof header)
		quit(11);
	nruns = header[0];
	if (header[1] != sizeof(struct run) || header[2] != sizeof(struct result))
		quit(12);
	total = 2 * nruns;
	u8 *in = map(0, sizeof header + nruns * sizeof(struct run), 1, 2, 3);
	runs = (const struct run *)(in + sizeof header);
	u8 *out = map(0, 64 + total * sizeof(struct result), 3, 1, 4);
	progress = (u64 *)out;
	results = (struct result *)(out + 64);
	areas(0);
	areas(header[3]);
	sys(203, 0, sizeof cpu, (u64)&cpu, 0, 0, 0); /* stay on one CPU */
	sys(131, (u64)&ss, 0, 0, 0, 0, 0);
	for (int i = 0; i < 5; i++)
		if (sys(13, sigs[i], (u64)&sa, 0, 8, 0, 0) < 0)
			quit(13);
	__asm__ volatile("int3");
	quit(14);
}
