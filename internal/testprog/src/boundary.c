// Compares all that a thread has before and after code that may be probed, bit by bit.
//
//	boundary    commands: go N, signals USEC, block, returned, count, quit
//
// Each station st_NAME is a few instructions. It is entered with a pattern in every register:
// general ones, flags (arithmetic, direction, ID), x87 with its control, status, tags and
// pointers, MXCSR, all vector and mask registers of the CPU, 128 bytes below the stack pointer
// and 256 above it, and the data that it works on. What is in all of them afterwards must be
// what was there when the station ran at the start of the program, before anybody could probe
// it; so must errno, the signal mask, the alternate signal stack and the GS base. What differs
// stands on stderr.
//
// at_NAME is an instruction inside of a station, ret_NAME its return. "at_NAME" in the answer
// counts how often the first was run, "calls" how often each station. "signals" is the number
// of timer signals, on an alternate stack, whose handler has gone through st_signal in the same
// way. "block" makes the thread block SIGSEGV and SIGBUS. "returned" leaves out from then on what
// is below the stack pointer when a station has returned: who calls can keep nothing there.
#include "prog.h"
#include <cpuid.h>
#include <execinfo.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <asm/prctl.h>

#define XSIZE 4096
#define R_OFF 4096
#define FLAGS_OFF 4224
#define STR2(x) #x
#define STR(x) STR2(x)

struct image {
	uint8_t x[XSIZE];
	uint64_t r[16];
	uint64_t flags;
} __attribute__((aligned(64)));
_Static_assert(__builtin_offsetof(struct image, r) == R_OFF && __builtin_offsetof(struct image, flags) == FLAGS_OFF, "layout");

enum { AX, CX, DX, BX, SP, BP, SI, DI };
static const char *const reg_names[] = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
	"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"};

#define DATA 768
#define ABOVE 256
#define BELOW 136 // the red zone, and the return address

// A level is the program itself, or its signal handler.
struct level {
	struct image *in, *out;
	uint8_t *stack, *data; // the stack pointer before the call, and what rdi points into
	void **target;
	void (*drive)(void);
};

uint32_t xmask;
uint32_t xlength;

// drive_L() loads L_in, calls *L_target, and stores L_out.
#define LOAD(n, reg) "mov " STR(R_OFF) "+8*" #n "+L_in(%rip), %" #reg "\n"
#define STORE(n, reg) "mov %" #reg ", " STR(R_OFF) "+8*" #n "+L_out(%rip)\n"
#define EACH(F) F(0, rax) F(1, rcx) F(2, rdx) F(3, rbx) F(5, rbp) F(6, rsi) F(7, rdi) F(8, r8) F(9, r9) \
	F(10, r10) F(11, r11) F(12, r12) F(13, r13) F(14, r14) F(15, r15)
#define DRIVER(L, size)                                                                                    \
	struct image L##_in, L##_out;                                                                      \
	void *L##_target;                                                                                  \
	uint64_t L##_own[2];                                                                               \
	void drive_##L(void);                                                                              \
	static uint8_t L##_stack[size] __attribute__((aligned(4096)));                                     \
	static uint8_t L##_data[DATA] __attribute__((aligned(64)));                                        \
	static struct level L = {&L##_in, &L##_out, L##_stack + (1 << 16), L##_data, &L##_target, drive_##L}; \
	__asm__(".macro drive_asm_" #L "\n"                                                                \
		".set L_in, " #L "_in\n.set L_out, " #L "_out\n.set L_own, " #L "_own\n.set L_target, " #L "_target\n" \
		".globl drive_" #L "\n.type drive_" #L ", @function\ndrive_" #L ":\n"                      \
		"push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n pushfq\n"         \
		"mov %rsp, L_own(%rip)\n stmxcsr 8+L_own(%rip)\n fnstcw 12+L_own(%rip)\n"                  \
		"mov xmask(%rip), %eax\n xor %edx, %edx\n xrstor64 L_in(%rip)\n"                           \
		"pushq " STR(FLAGS_OFF) "+L_in(%rip)\n popfq\n"                                            \
		EACH(LOAD) LOAD(4, rsp)                                                                    \
		"call *L_target(%rip)\n"                                                                   \
		STORE(4, rsp) "mov L_own(%rip), %rsp\n" EACH(STORE)                                        \
		"pushfq\n popq " STR(FLAGS_OFF) "+L_out(%rip)\n cld\n"                                     \
		"mov xmask(%rip), %eax\n xor %edx, %edx\n xsave64 L_out(%rip)\n"                           \
		"fninit\n ldmxcsr 8+L_own(%rip)\n fldcw 12+L_own(%rip)\n"                                  \
		"popfq\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"          \
		".size drive_" #L ", .-drive_" #L "\n.endm\n.text\n.p2align 4\ndrive_asm_" #L "\n")
DRIVER(program, (1 << 16) + 4096);
// The signal handler's is the lower part of the alternate stack, which the kernel must find the
// thread on if another signal comes.
DRIVER(handler, 1 << 17);

// What may differ, and what a station needs.
#define RCX 1 // a system call leaves the address behind it there, which tells where it ran
#define FIP 2 // x87 keeps the address of its last instruction
#define AVX 4
#define EVEX 8

#define AT(name) "at_" #name ": "
#define STATIONS(X)                                                                                        \
	X(plain, 1, 0, AT(plain) "adc %rcx, %rdx\n sbb $3, %r8\n cmovo %r9, %r10\n mul %rbx\n rcl $3, %r12\n") \
	X(memory, 1, 0, AT(memory) "add %rax, 8(%rdi)\n lock xaddq %rbx, 16(%rdi)\n xchg %rcx, 24(%rdi)\n lock cmpxchg16b (%rdi)\n") \
	X(relative, 1, 0, AT(relative) "mov word_(%rip), %rax\n xor %rax, %rdx\n cmp %r9, word_(%rip)\n lea word_(%rip), %rbp\n") \
	X(redzone, 1, 0, "mov %rax, -8(%rsp)\n mov %rbx, -120(%rsp)\n" AT(redzone) "mov -8(%rsp), %rcx\n sbb -120(%rsp), %rdx\n mov %r9, -128(%rsp)\n") \
	X(push, 1, 0, AT(push) "push %r12\n pushq $-5\n pushq 8(%rdi)\n push %rsp\n pop %r13\n pop %rax\n popq 16(%rdi)\n pop %r12\n") \
	X(pop, 1, 0, "push %rbx\n push %rcx\n" AT(pop) "pop %r13\n pop %r14\n lea 2(%r9), %r9\n")             \
	X(pushf, 1, 0, AT(pushf) "pushfq\n pop %rax\n lea 1(%rbx), %rbx\n")                                    \
	X(popf, 1, 0, "pushq %rbx\n andq $0xcd5, (%rsp)\n orq $2, (%rsp)\n" AT(popf) "popfq\n lea 1(%rbx), %rbx\n lea 1(%rbx), %rbx\n") \
	X(lahf, 1, 0, AT(lahf) "lahf\n seto %al\n mov %rax, %rbx\n cmc\n")                                     \
	X(ret, 1, 0, "lea -16(%rsp), %rsp\n call 2f\n {disp32} jmp 3f\n2: lea 1(%rbx), %rbx\n" AT(ret) "ret $16\n3:\n") \
	X(call, 1, 0, AT(call) "call callee\n lea 1(%rbx), %rbx\n")                                            \
	X(callreg, 1, 0, "lea callee(%rip), %rax\n" AT(callreg) "call *%rax\n lea 1(%rbx), %rbx\n lea 1(%rbx), %rbx\n") \
	X(callmem, 1, 0, AT(callmem) "call *callee_(%rip)\n lea 1(%rbx), %rbx\n")                              \
	X(callnext, 1, 0, AT(callnext) "call 1f\n1: pop %rax\n")                                               \
	X(jcc, 1, 0, AT(jcc) "{disp32} jc 1f\n lea 1(%rbx), %rbx\n jp 1f\n lea 2(%rbx), %rbx\n1:\n")           \
	X(jump, 1, 0, AT(jump) "{disp32} jmp 1f\n ud2\n1:\n")                                                  \
	X(jrcxz, 1, 0, "lea 1(%rbx), %rbx\n" AT(jrcxz) "jrcxz 1f\n lea 1(%rax), %rax\n1: lea 3(%rax), %rax\n") \
	X(loop, 3, 0, "mov $3, %ecx\n1: lea 1(%rbx), %rbx\n lea 2(%rbx), %rbx\n" AT(loop) "loop 1b\n")         \
	X(syscall, 1, RCX, "mov $39, %eax\n" AT(syscall) "syscall\n lea 1(%rax), %rbx\n lea 1(%rax), %rbp\n")  \
	X(enter, 1, 0, AT(enter) "enter $32, $0\n mov %rbx, -8(%rbp)\n leave\n")                               \
	X(strings, 1, 0, "mov $7, %ecx\n" AT(strings) "rep movsb\n stosq\n lodsw\n scasl\n mov $3, %ecx\n rep stosl\n mov %rsi, %rax\n") \
	X(backward, 1, 0, "std\n" AT(backward) "movsq\n movsq\n lodsb\n stosb\n")                              \
	X(segment, 1, 0, AT(segment) "mov %fs:0, %rax\n lea 1(%rbx), %rbx\n")                                  \
	X(sse, 1, 0, AT(sse) "paddd (%rdi), %xmm3\n mulpd %xmm1, %xmm2\n cvtsd2si %xmm4, %rax\n ucomisd %xmm5, %xmm6\n movq %rbx, %xmm15\n") \
	X(mxcsr, 1, 0, AT(mxcsr) "stmxcsr 32(%rdi)\n divpd %xmm3, %xmm4\n ldmxcsr 32(%rdi)\n")                 \
	X(x87, 1, FIP, AT(x87) "fldl (%rdi)\n faddl 8(%rdi)\n fxch %st(3)\n fstpl 16(%rdi)\n fcomi %st(1), %st\n fnstsw %ax\n fnstcw 24(%rdi)\n") \
	X(mmx, 1, FIP, AT(mmx) "paddb (%rdi), %mm1\n movq %mm1, %rax\n movq %mm2, 8(%rdi)\n")                  \
	X(vex, 1, AVX, AT(vex) "vpaddd (%rdi), %ymm1, %ymm2\n vaddps %ymm3, %ymm4, %ymm5\n vptest %ymm6, %ymm7\n vpxor word_(%rip), %xmm8, %xmm9\n") \
	X(upper, 1, AVX, AT(upper) "vzeroupper\n vpaddd %ymm1, %ymm2, %ymm15\n")                               \
	X(evex, 1, EVEX, AT(evex) "vpaddd (%rdi), %zmm1, %zmm17{%k1}{z}\n vaddps %zmm3, %zmm31, %zmm5{%k3}\n vmovdqu8 %zmm20, 64(%rdi){%k2}\n") \
	X(masks, 1, EVEX, AT(masks) "kandq %k1, %k2, %k3\n kortestq %k4, %k5\n kmovq %k6, %rax\n vpcmpeqb (%rdi), %zmm7, %k7{%k1}\n vpblendmq wide_(%rip), %zmm8, %zmm9{%k4}\n") \
	X(signal, 1, FIP, AT(signal) "adc %rcx, %rdx\n paddd (%rdi), %xmm3\n fldl (%rdi)\n fstpl 8(%rdi)\n push %rax\n pop %rbx\n")

__asm__(".data\n.p2align 6\nwide_: .skip 64, 0x5a\nword_: .quad 0x1122334455667788, 0x99aabbccddeeff00\ncallee_: .quad callee\n"
	".text\n.p2align 5\n.type callee, @function\ncallee: mov (%rsp), %r15\n lea 3(%r14), %r14\n ret\n.size callee, .-callee\n"
	".skip 16, 0xcc\n");
#define EMIT(name, weight, traits, body)                                                                   \
	void st_##name(void);                                                                              \
	__asm__(".p2align 5, 0xcc\n.globl st_" #name ", at_" #name ", ret_" #name "\n.type st_" #name ", @function\nst_" #name ":\n.cfi_startproc\n" \
		"lea 8(%rdi), %rdi\n lea -8(%rdi), %rdi\n" body                                            \
		"lea 1(%r11), %r11\n ret_" #name ": ret\n.cfi_endproc\n.size st_" #name ", .-st_" #name "\n.skip 16, 0xcc\n");
STATIONS(EMIT)

static struct station {
	const char *name;
	void (*f)(void);
	int weight, traits;
	uint8_t *want; // what each seed leaves
} stations[] = {
#define ROW(name, weight, traits, body) {#name, st_##name, weight, traits, NULL},
	STATIONS(ROW)
};
#define COUNT ((int)(sizeof stations / sizeof stations[0]))
#define SEEDS 128

static volatile uint64_t bad, calls, signals;

// xrand is a generator of patterns (xorshift, Marsaglia 2003).
static uint64_t xrand(uint64_t *s) {
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static void pattern(void *to, size_t n, uint64_t *s) {
	for (size_t i = 0; i < n; i++)
		((uint8_t *)to)[i] = (uint8_t)(xrand(s) >> 24);
}

// fill makes what a station is entered with. All values of the arithmetic flags and DF come.
static void fill(struct level *l, int seed) {
	static const int bits[] = {0, 2, 4, 6, 7, 11, 10};
	uint64_t s = 0x9e3779b97f4a7c15u * (uint64_t)(seed + 1);
	struct image *in = l->in;
	memset(in, 0, sizeof *in);
	memset(l->out, 0, sizeof *l->out);
	pattern(in->x, xlength, &s);
	memset(in->x + 512, 0, 64);
	memcpy(in->x + 512, &xmask, sizeof xmask);
	uint16_t fcw = (uint16_t)(0x33f | (seed & 3) << 10 | (seed & 4) << 6), fsw = (uint16_t)((seed & 7) << 11 | (xrand(&s) & 0x4720));
	uint32_t csr = 0x1f80 | (uint32_t)(xrand(&s) & 0xe07f), all = 0xffff;
	memcpy(in->x, &fcw, 2);
	memcpy(in->x + 2, &fsw, 2);
	in->x[5] = 0;
	in->x[7] &= 7; // an opcode has 11 bits
	memset(in->x + 14, 0, 2); // an address 48, but for its sign
	memset(in->x + 22, 0, 2);
	in->x[13] &= 0x7f;
	in->x[21] &= 0x7f;
	memcpy(in->x + 24, &csr, 4);
	memcpy(in->x + 28, &all, 4);
	for (int i = 0; i < 8; i++) { // normal numbers
		in->x[32 + 16 * i + 7] |= 0x80;
		in->x[32 + 16 * i + 8] = (uint8_t)(0xf0 + i);
		in->x[32 + 16 * i + 9] = 0x3f;
		memset(in->x + 32 + 16 * i + 10, 0, 6);
	}
	pattern(in->r, sizeof in->r, &s);
	in->r[SP] = (uint64_t)l->stack;
	in->r[DI] = (uint64_t)l->data + 256;
	in->r[SI] = (uint64_t)l->data + 512;
	in->r[CX] = seed & 8 ? in->r[CX] : 0;
	in->flags = 0x202 | (uint64_t)(seed & 1) << 21;
	for (int i = 0; i < 7; i++)
		in->flags |= (uint64_t)(seed >> i & 1) << bits[i];
	pattern(l->data, DATA, &s);
	pattern(l->stack - BELOW, BELOW + ABOVE, &s);
}

// take collects what a station has left, but for what may differ.
static uint8_t *take(struct level *l, const struct station *st, uint8_t *to) {
	struct image *o = l->out;
	if (st->traits & RCX)
		o->r[CX] = 0;
	if (st->traits & FIP)
		memset(o->x + 8, 0, 8);
	memset(o->x + 512, 0, 64); // which components are in use is the CPU's own
	to = mempcpy(to, o->x, xlength);
	to = mempcpy(to, o->r, sizeof o->r + sizeof o->flags);
	to = mempcpy(to, l->data, DATA);
	return mempcpy(to, l->stack - BELOW, BELOW + ABOVE);
}

static size_t taken(void) { return xlength + sizeof(uint64_t[17]) + DATA + BELOW + ABOVE; }

// once runs a station.
static void once(struct level *l, const struct station *st, int seed, uint8_t *to) {
	fill(l, seed);
	*l->target = (void *)st->f;
	l->drive();
	take(l, st, to);
}

static int returned;

// same compares two results.
static int same(const uint8_t *want, const uint8_t *got) {
	size_t head = taken() - ABOVE - (returned ? BELOW : 0);
	return memcmp(want, got, head) == 0 && memcmp(want + taken() - ABOVE, got + taken() - ABOVE, ABOVE) == 0;
}

// tell says where two results differ.
static void tell(const struct station *st, int seed, const uint8_t *want, const uint8_t *got) {
	size_t regs = xlength, flags = regs + 128, data = flags + 8, stack = data + DATA, n = taken();
	int found = 0;
	for (size_t i = 0; i < n; i++) {
		if (want[i] == got[i] || (returned && i >= stack && i < stack + BELOW))
			continue;
		char where[64];
		if (i < regs)
			snprintf(where, sizeof where, "xsave+%zu", i);
		else if (i < flags)
			snprintf(where, sizeof where, "%s+%zu", reg_names[(i - regs) / 8], (i - regs) % 8);
		else if (i < data)
			snprintf(where, sizeof where, "flags+%zu", i - flags);
		else if (i < stack)
			snprintf(where, sizeof where, "data+%zu", i - data);
		else
			snprintf(where, sizeof where, "stack%+d", (int)(i - stack) - BELOW);
		if (found++ < 16 && bad < 8)
			fprintf(stderr, "%s, seed %d: %s is %02x, want %02x\n", st->name, seed, where, got[i], want[i]);
	}
}

static void check(struct level *l, const struct station *st, int seed, uint8_t *got) {
	const uint8_t *want = st->want + (size_t)seed * taken();
	once(l, st, seed, got);
	if (!same(want, got)) {
		tell(st, seed, want, got);
		bad++;
	}
}

static int usable(const struct station *st) {
	return !((st->traits & AVX && !(xmask & 4)) || (st->traits & EVEX && (xmask & 0xe0) != 0xe0));
}

static sigset_t mask_;
static stack_t alt_;
#define GSBASE 0x123456789000u

// outside checks what is not in registers, as a station has left it.
static void outside(const struct station *st, int err) {
	sigset_t m;
	stack_t a;
	uint64_t gs = 0;
	sigemptyset(&m);
	if (sigprocmask(SIG_BLOCK, NULL, &m) || sigaltstack(NULL, &a) || syscall(SYS_arch_prctl, ARCH_GET_GS, &gs))
		die("asking");
	if (err != EXDEV || memcmp(&m, &mask_, 8) != 0 || a.ss_sp != alt_.ss_sp || a.ss_size != alt_.ss_size || a.ss_flags != alt_.ss_flags || gs != GSBASE) {
		fprintf(stderr, "%s: errno %d, or the mask, the alternate stack %p or the GS base %#" PRIx64 " is another\n", st->name, err, a.ss_sp, gs);
		bad++;
	}
}

static uint8_t *room(void) {
	uint8_t *b = malloc(taken());
	if (!b)
		die("malloc");
	return b;
}

static void run(uint64_t n) {
	uint8_t *got = room();
	for (uint64_t i = 0; i < n; i++, calls++)
		for (int s = 0; s < COUNT - 1; s++)
			if (usable(&stations[s])) {
				errno = EXDEV;
				check(&program, &stations[s], (int)(calls % SEEDS), got);
				outside(&stations[s], errno);
			}
	free(got);
}

static uint8_t *handlers_room;

static void on_timer(int sig) {
	(void)sig;
	int err = errno;
	check(&handler, &stations[COUNT - 1], (int)(signals % SEEDS), handlers_room);
	signals++;
	errno = err;
}

// learn runs all stations for all seeds. What the handler's level leaves lies elsewhere: it has
// a want of its own.
static void learn(void) {
	for (int s = 0; s < COUNT; s++) {
		struct station *st = &stations[s];
		if (!usable(st))
			continue;
		st->want = malloc(taken() * SEEDS);
		if (!st->want)
			die("malloc");
		for (int seed = 0; seed < SEEDS; seed++)
			once(s == COUNT - 1 ? &handler : &program, st, seed, st->want + (size_t)seed * taken());
	}
}

static void timer(uint64_t usec) {
	struct itimerval t = {{0, (suseconds_t)usec}, {0, (suseconds_t)usec}};
	if (setitimer(ITIMER_REAL, &t, NULL))
		die("setitimer");
}

static void prepare(void) {
	unsigned a, b, c, d;
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	xmask = a & 0xe7;
	xlength = 576; // as far as these reach: tiles, which are not looked at, take 8 KiB more
	for (unsigned n = 2; n < 8; n++) {
		__cpuid_count(0xd, n, a, b, c, d);
		if (xmask >> n & 1 && a + b > xlength)
			xlength = a + b;
	}
	if (xlength > XSIZE)
		xlength = 0;
	stack_t ss = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
	struct sigaction sa = {.sa_handler = on_timer, .sa_flags = SA_ONSTACK | SA_RESTART};
	sigemptyset(&mask_);
	sigaddset(&mask_, SIGUSR2);
	sigaddset(&mask_, SIGWINCH);
	sigaddset(&mask_, SIGRTMIN + 5);
	if (xlength == 0 || sigaltstack(&ss, NULL) || sigaltstack(NULL, &alt_) || sigaction(SIGALRM, &sa, NULL) ||
	    sigprocmask(SIG_SETMASK, &mask_, NULL) || syscall(SYS_arch_prctl, ARCH_SET_GS, GSBASE))
		die("set-up");
	handlers_room = room();
	void *frame;
	backtrace(&frame, 1); // the unwinder is loaded, which return probes by trampoline look for
}

static void report(void) {
	char text[4096];
	int n = 0;
	for (int s = 0; s < COUNT - 1; s++)
		if (usable(&stations[s]))
			n += snprintf(text + n, sizeof text - (size_t)n, "\"at_%s\":%" PRIu64 ",", stations[s].name, calls * (uint64_t)stations[s].weight);
	say("{%s\"calls\":%" PRIu64 ",\"signals\":%" PRIu64 ",\"bad\":%" PRIu64 "}", text, calls, signals, bad);
}

int main(void) {
	char line[256];
	prepare();
	learn();
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			run(number(line, "go", 1));
		else if (is(line, "signals"))
			timer(number(line, "signals", 0));
		else if (is(line, "returned"))
			returned = 1;
		else if (is(line, "block")) {
			sigaddset(&mask_, SIGSEGV);
			sigaddset(&mask_, SIGBUS);
			if (sigprocmask(SIG_SETMASK, &mask_, NULL))
				die("sigprocmask");
		}
		report();
	}
	report();
	return bad != 0;
}
