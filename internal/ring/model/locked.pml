/*
 * The protocol of a locked shard: steps L1-L5, D1-D5 and H1-H3 of protocol.go.
 *
 * Two writers on two CPUs, in two processes that share the ring (fork), the first of
 * which is interrupted by a signal handler that writes too; a reader on a third CPU.
 * Every CPU has a store buffer (x86-TSO); a locked instruction waits until it is empty.
 * One process may be killed at any step while the other goes on. The reader may reap at
 * any time that the rule allows, not only at the end.
 *
 * Deliberate mistakes, for each of which the check must find an error:
 *   COMMIT_FIRST  word 0 is stored before the others
 *   ZERO_LATE     the reader gives space back before it is zero
 *   UNLOCKED      head is loaded and stored, not exchanged
 *   REAP_BLIND    a hole is skipped without asking for the writers
 *   COUNT_HOLE    a hole is counted as one lost record
 *
 * WEAK is a CPU that orders nothing by itself: a store reaches memory before older ones of other words, and the
 * exchange of the head waits for no store. What protocol.go asks of such a CPU is in the model, and each of
 * these leaves one of it out:
 *   L5_PLAIN      word 0 reaches memory before others of the record: no release
 *   D2_PLAIN      the reader's loads of a record are done before that of its word 0: no acquire
 *   D5_PLAIN      the tail reaches memory before zeroes: no release
 *
 * The whole with RUNS=2 has 26 million states; NO_HANDLER leaves the handler out.
 */
#define UNITS   4               /* positions before a place repeats; all may be unread */
#define WORDS   6               /* data and slack, records have 2 or 3 units */
#define COUNTS  2               /* reservations are counted modulo this: UNITS / 2, as in a real shard */
#define CPUS    2
#define HANDLER 2
#define TAIL    WORDS           /* address of the tail in the reader's store buffer */
#ifndef RUNS
#define RUNS    1               /* attempts of writer 1; writer 0 and its handler make one */
#endif

byte mem[WORDS];
byte pos, count;                /* the head: one word, always read and written in one step */
byte tail;

chan buffer[CPUS] = [4] of { byte, bool, byte };
chan rbuffer = [5] of { byte, byte };

bool handling;                  /* the handler runs on CPU 0 */
bool dead[CPUS];
bool outside[CPUS] = true;      /* not in generated code */

byte serial = 0;                /* reservations so far; names records */

/* A store in a buffer is an address, whether it is a word 0, and id << 2 | units. A record is
 * two stores, word 0 and all the others together, whose order does not matter and
 * which are only looked at together; units then are those of the others. */
#define word0 ((id << 2) | n)

/* STEP is one instruction of a thread that is not interrupted; LOCKED waits for the store
 * buffer. A killed thread does none any more. */
#define READY           (me == HANDLER || cpu != 0 || !handling)
#define STEP(x...)         atomic { dead[cpu] || READY; if :: dead[cpu] -> goto gone :: else -> x fi }
#ifdef WEAK
#define LOCKED STEP
#else
#define LOCKED(x...)       atomic { dead[cpu] || READY && len(buffer[cpu]) == 0; if :: dead[cpu] -> goto gone :: else -> x fi }
#endif

#define LEAVE if :: me == HANDLER -> outside[0] = was; handling = false :: else -> outside[cpu] = true fi
#define RESERVE pos = h + n; count = (c + 1) % COUNTS; serial++; id = serial

/* write is the generated code: one attempt. */
inline write()
{
	if :: n = 2 :: me == 0 -> n = 3 fi;
again:
	STEP(outside[cpu] = false; t = tail);					/* L1 */
	STEP(h = pos; c = count);
	if
	:: h + n - t > UNITS ->							/* L2 */
		LOCKED(LEAVE)	/* lost[event]++: by this one instruction, so always counted */
	:: else ->
#ifdef UNLOCKED
		STEP(RESERVE);
#else
		LOCKED(if :: pos == h && count == c -> RESERVE :: else -> goto again fi);	/* L3 */
#endif
#ifdef COMMIT_FIRST
		STEP(buffer[cpu]!h % UNITS, true, word0);
#define LAST LEAVE
#else
#define LAST skip
#endif
		STEP(buffer[cpu]!h % UNITS + 1, false, (id << 2) | (n - 1); LAST);	/* L4 */
#ifndef COMMIT_FIRST
		STEP(buffer[cpu]!h % UNITS, true, word0; LEAVE)			/* L5 */
#endif
	fi;
	d_step { n = 0; t = 0; h = 0; c = 0; id = 0 }
}

active [CPUS] proctype writer()
{
	byte me = _pid, cpu = _pid, left = (_pid == 1 -> RUNS : 1), n, t, h, c, id;
	bool was;

	do
	:: left == 0 -> break
	:: left > 0 ->
		write();
		left--
	od;
	STEP(dead[cpu] = true);	/* ending is a death outside of the code */
gone:	skip
}

#ifndef NO_HANDLER
/* handler interrupts writer 0 once, at any step, and runs to its end first. */
active proctype handler()
{
	byte me = HANDLER, cpu = 0, n, t, h, c, id;
	bool was;

end:
	atomic { !dead[0] -> handling = true; was = outside[0]; outside[0] = false };
	write();
gone:	skip
}
#endif

active proctype killer()
{
end:	if
	:: atomic { !dead[0] -> dead[0] = true }
	:: atomic { !dead[1] -> dead[1] = true }
	fi
}

/* fill stores what in as many words as much says. */
inline fill(where, much, what)
{
	mem[where] = what;
	if :: much > 1 -> mem[where + 1] = what :: else fi;
	if :: much > 2 -> mem[where + 2] = what :: else fi
}

active proctype drain()
{
	byte x, v;
	bool first;

#ifdef WEAK
	/* In any order but for stores to the same word, and for word 0 of a record and the tail, which are
	 * released: all older stores are done. */
#ifdef L5_PLAIN
#define COMMITTED(i) buffer[i]??x, true, v
#else
#define COMMITTED(i) buffer[i]?x, true, v
#endif
#ifdef D5_PLAIN
#define RELEASED rbuffer??TAIL, v
#else
#define RELEASED rbuffer?TAIL, v
#endif
#define ANY(i, x) d_step { buffer[i]??x, false, v -> fill(x, (v & 3), (v >> 2)); v = 0 }
#define ZERO(x) d_step { rbuffer??x, v -> fill(x, v, 0); v = 0 }
end:	do
	:: d_step { COMMITTED(0) -> mem[x] = v; x = 0; v = 0 }
	:: d_step { COMMITTED(1) -> mem[x] = v; x = 0; v = 0 }
	:: ANY(0, 1)
	:: ANY(0, 2)
	:: ANY(0, 3)
	:: ANY(0, 4)
	:: ANY(1, 1)
	:: ANY(1, 2)
	:: ANY(1, 3)
	:: ANY(1, 4)
	:: ZERO(0)
	:: ZERO(1)
	:: ZERO(2)
	:: ZERO(3)
	:: ZERO(4)
	:: d_step { RELEASED -> tail = v; v = 0 }
	od
#else
	xr rbuffer;
end:	do
	:: d_step { buffer[0]?x, first, v -> if :: first -> mem[x] = v :: else -> fill(x, (v & 3), (v >> 2)) fi; x = 0; v = 0; first = 0 }
	:: d_step { buffer[1]?x, first, v -> if :: first -> mem[x] = v :: else -> fill(x, (v & 3), (v >> 2)) fi; x = 0; v = 0; first = 0 }
	:: d_step { rbuffer?x, v -> if :: x == TAIL -> tail = v :: else -> fill(x, v, 0) fi; x = 0; v = 0 }
	od
#endif
}

#ifdef D2_PLAIN
#define LOADED(i) e##i
#else
#define LOADED(i) mem[at + i]
#endif

/* sweep copies and zeroes what is committed, up to the head. */
inline sweep()
{
	h = pos;								/* D1 */
	assert(h >= a && h - a <= UNITS);
	do
	:: a == h -> break
	:: a != h ->
		at = a % UNITS;
#ifdef D2_PLAIN
		d_step { e1 = mem[at + 1]; if :: at + 2 < WORDS -> e2 = mem[at + 2] :: else fi };
#endif
		w = mem[at];							/* D2 */
		if :: w == 0 -> break :: else fi;
		n = w & 3;
		assert(n >= 2 && a + n <= h);
		assert(LOADED(1) == w >> 2 && (n == 2 || LOADED(2) == w >> 2));	/* D3: not torn */
		assert(w >> 2 > last);						/* in order, none twice */
		last = w >> 2;
#ifdef ZERO_LATE
		rbuffer!TAIL, a + n;
#endif
		rbuffer!at, n;							/* D4 */
		d_step { got++; a = a + n; acount = (acount + 1) % COUNTS; w = 0; n = 0; at = 0 };
#ifndef ZERO_LATE
		rbuffer!TAIL, a							/* D5 */
#endif
	od
}

#ifdef REAP_BLIND
#define GONE(i) true
#else
#define GONE(i) ((dead[i] || outside[i]) && len(buffer[i]) == 0)
#endif

/* reap gives up what is not committed below a mark. */
inline reap()
{
	atomic { m = pos; mc = count };						/* H1 */
	if
	:: GONE(0) ->								/* H2, one after the other */
		if
		:: GONE(1) ->
			sweep();						/* H3 */
			if
			:: a < m ->
				atomic {
					lostn = (mc + COUNTS - acount) % COUNTS;
					if :: lostn == 0 -> lostn = COUNTS :: else fi
				};
#ifdef COUNT_HOLE
				lostn = 1;
#endif
				given = given + lostn;
				i = a;
				do
				:: i == m -> break
				:: i != m -> rbuffer!i % UNITS, 1; i++
				od;
				if
				:: a / UNITS != (m - 1) / UNITS || m % UNITS != 0 && a / UNITS != m / UNITS ->
					rbuffer!UNITS, 2
				:: else
				fi;
				d_step { a = m; acount = mc; lostn = 0; i = 0 };
				rbuffer!TAIL, a
			:: else
			fi
		:: else
		fi
	:: else
	fi
}

active proctype reader()
{
	byte h, at, w, n, m, mc, i, lostn;
	byte a, acount;	/* its own account */
	byte got, given, last;
	xs rbuffer;
	bool finish = false, reaped = false;
#ifdef D2_PLAIN
	byte e1, e2;	/* what words 1 and 2 were before word 0 was loaded */
#endif

	do
	:: finish -> break
	:: else ->
		if
		:: atomic { dead[0] && dead[1] && empty(buffer[0]) && empty(buffer[1]) -> finish = true }
		:: skip
		fi;
		sweep();
		if
		:: finish -> reap()
		:: !finish && !reaped && a != pos -> reaped = true; reap()
		:: !finish -> skip
		fi
	od;
	assert(got + given == serial);						/* nothing lost uncounted */
	assert(a == pos && acount == count)
}
