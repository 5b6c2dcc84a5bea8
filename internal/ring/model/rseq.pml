/*
 * The protocol of an rseq shard: steps R1-R5, L and C1-C5 of protocol.go.
 *
 * One CPU, on which threads replace each other at any step, one of them a signal
 * handler of thread 0; a reader on another CPU. The CPU has a store buffer (x86-TSO):
 * what its threads store reaches memory later, in order. One thread may be killed at any
 * step. Words of a record hold its time stamp, so that a torn record shows.
 *
 * Deliberate mistakes, for each of which the check must find an error:
 *   PUBLISH_FIRST  the head is stored before the record
 *   NO_RESTART     a preempted section goes on where it was
 *   TAIL_EARLY     the reader gives the space back before it has copied
 *   LOSS_SILENT    a full shard drops without counting
 *
 * WEAK is a CPU that orders nothing by itself: a store reaches memory before older ones of other words. What
 * protocol.go asks of such a CPU is in the model, and each of these leaves one of it out:
 *   R5_PLAIN       the head reaches memory before words of the record: no release
 *   C1_PLAIN       the reader's loads of the records are done before that of the head: no acquire
 *   R2_PLAIN       the record's stores are done before the load of the tail: no acquire, and no branch between
 *   TAIL_EARLY     (above) is C4 without release
 *
 * As it stands it has 2 million states; RUNS=2 has 9 million, SWITCHES=3 6.5 million, WEAK 4.6 million.
 */
#define UNITS   4               /* positions before a place repeats */
#define MAXREC  3               /* units of the largest record */
#define WORDS   6               /* UNITS + MAXREC - 1: data and slack */
#define THREADS 3               /* 0 and 1, and 2: the handler that interrupts 0 */
#define HANDLER 2
#ifndef RUNS
#define RUNS    1               /* attempts of thread 0; the others make one */
#endif

#ifndef SWITCHES
#define SWITCHES 2              /* of threads in mid-run; they also switch when one ends */
#endif

#define HEAD    WORDS           /* address of the head in the store buffer */

byte mem[WORDS];                /* memory as the reader sees it */
byte head, tail;
byte cpuhead;                   /* the head as this CPU sees it: its own stores included */
chan buffer = [6] of { byte, byte, byte };      /* address, value, words that get it */

byte cur = 0;                   /* the thread on the CPU */
bool restart[THREADS];          /* it was interrupted inside its section */
bool inside[THREADS];
bool over[THREADS];             /* ended or killed */
bool mayKill = true;
byte switches = 0;
bool handling = false;          /* thread 0 cannot run before its handler returns */

byte commits = 0;               /* records published so far */
byte owed = 0;                  /* published and not read */
byte uncounted = 0;             /* dropped and not counted */

/* STEP: one instruction of the thread, if it is on the CPU and was not interrupted. */
#define STEP(x...) atomic {			\
	over[me] || cur == me && len(buffer) < 5;	\
	if					\
	:: over[me] -> goto gone		\
	:: !over[me] && restart[me] -> restart[me] = false; goto begin	\
	:: else -> x				\
	fi }

#define PUBLISH buffer!HEAD, h + n, 1; cpuhead = h + n; commits++; owed++

#ifdef WEAK
#define WORDS1TO if :: n == 3 -> buffer!h % UNITS + 2, stamp, 1 :: else fi; buffer!h % UNITS + 1, stamp, 1
#else
#define WORDS1TO buffer!h % UNITS + 1, stamp, n - 1
#endif

#define word0 ((stamp << 2) | n)
#define NOW   ((commits + 1) * 4 + me)   /* the time: grows with every record, and no two threads see the same */

active [THREADS] proctype writer()
{
	byte me = _pid, left, n, h, stamp;
	bool noroom;

	left = (me == 0 -> RUNS : 1);
	do
	:: left == 0 -> break
	:: left > 0 ->
		if :: n = 2 :: me != HANDLER -> n = 3 fi;
begin:
		/* R1 to R3 in one step: what they read, but for the tail, only this CPU
		 * changes, and if it changes they begin again. */
#ifdef R2_PLAIN
		STEP(inside[me] = true; h = cpuhead; stamp = NOW);
		STEP(WORDS1TO);
		STEP(buffer!h % UNITS, word0, 1);
		STEP(noroom = h + n - tail > UNITS);
#else
		STEP(inside[me] = true; h = cpuhead; stamp = NOW; noroom = h + n - tail > UNITS);
#endif
		if
		:: noroom ->							/* L */
#ifdef LOSS_SILENT
			STEP(uncounted++; inside[me] = false)
#else
			STEP(inside[me] = false)
#endif
		:: else ->
#ifdef PUBLISH_FIRST
			STEP(PUBLISH);
#endif
#ifndef R2_PLAIN
			STEP(WORDS1TO);						/* R4 */
			STEP(buffer!h % UNITS, word0, 1);
#endif
#ifdef PUBLISH_FIRST
			STEP(inside[me] = false)
#else
			STEP(PUBLISH; inside[me] = false)	/* R5 */
#endif
		fi;
		d_step { left--; n = 0; h = 0; stamp = 0; noroom = false }
	od;
	atomic { over[me] || cur == me; over[me] = true; if :: me == HANDLER -> handling = false :: else fi };
gone:	skip
}

#define LEAVE switches++; if :: inside[cur] -> RESTARTED :: else fi
#define MAYSWITCH (switches < SWITCHES || over[cur])
#ifdef NO_RESTART
#define RESTARTED skip
#else
#define RESTARTED restart[cur] = true
#endif

#define alive(t) (!over[t] && cur != t)

/* The kernel: preempts at any step, delivers the signal once, kills once. */
active proctype kernel()
{
end:	do
	:: atomic { alive(0) && MAYSWITCH && !handling -> LEAVE; cur = 0 }
	:: atomic { alive(1) && MAYSWITCH -> LEAVE; cur = 1 }
	:: atomic { alive(HANDLER) && MAYSWITCH && (handling || cur == 0 || over[0]) -> LEAVE; handling = true; cur = HANDLER }
	:: atomic { mayKill && !over[cur] ->
		mayKill = false;
		if
		:: cur == 1 -> over[1] = true
		:: else -> over[0] = true; over[HANDLER] = true; handling = false
		fi }
	od
}

/* The store buffer drains at any time: in order, or (WEAK) in any order but for stores to the same word and
 * for the head, which is released: all older stores are done. */
active proctype drain()
{
#ifdef WEAK
	byte v, n;

#define ANY(x) d_step { buffer??x, v, n -> mem[x] = v; v = 0; n = 0 }
#ifdef R5_PLAIN
#define RELEASED buffer??HEAD, v, n
#else
#define RELEASED buffer?HEAD, v, n
#endif
end:	do
	:: ANY(0)
	:: ANY(1)
	:: ANY(2)
	:: ANY(3)
	:: ANY(4)
	:: ANY(5)
	:: d_step { RELEASED -> head = v; v = 0; n = 0 }
	od
#else
	byte x, v, n;

end:	do
	:: d_step {
		buffer?x, v, n ->
		if
		:: x == HEAD -> head = v
		:: else ->
			mem[x] = v;
			if :: n > 1 -> mem[x + 1] = v :: else fi
		fi;
		x = 0; v = 0; n = 0 }
	od
#endif
}

#ifdef C1_PLAIN
#define LOADED early		/* what the memory had before the head was loaded */
#else
#define LOADED mem
#endif

active proctype reader()
{
	byte h, at, n, stamp, t = 0, last = 0;
	bool finish = false;
#ifdef C1_PLAIN
	byte early[WORDS];
#endif

	do
	:: finish -> break
	:: else ->
		if
		:: atomic { over[0] && over[1] && over[HANDLER] && empty(buffer) -> finish = true }
		:: skip
		fi;
#ifdef C1_PLAIN
		d_step {
			early[0] = mem[0]; early[1] = mem[1]; early[2] = mem[2];
			early[3] = mem[3]; early[4] = mem[4]; early[5] = mem[5]
		};
#endif
		h = head;						/* C1 */
		assert(h - t <= UNITS);
		do
		:: t == h -> break
		:: t != h ->
			at = t % UNITS;
#ifdef TAIL_EARLY
			tail = h;
#endif
			n = LOADED[at] & 3;				/* C2 */
			stamp = LOADED[at] >> 2;
			assert(n >= 2 && t + n <= h);			/* C3: nothing corrupt in an honest ring */
			assert(LOADED[at + 1] == stamp && (n == 2 || LOADED[at + 2] == stamp));	/* not torn */
			assert(stamp >> 2 == last + 1);		/* in order, none twice, none missing */
			last = stamp >> 2;
			d_step { owed--; t = t + n; n = 0; stamp = 0; at = 0 }
		od;
		tail = t						/* C4 */
	od;
	assert(owed == 0 && uncounted == 0)
}
