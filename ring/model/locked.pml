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
 */
#define UNITS   4               /* positions before a place repeats; all may be unread */
#define WORDS   6               /* data and slack, records have 2 or 3 units */
#define COUNTS  2               /* reservations are counted modulo this: UNITS / 2, as in a real shard */
#define CPUS    2
#define HANDLER 2
#define TAIL    WORDS           /* address of the tail in the reader's store buffer */
#ifndef RUNS
#define RUNS    2               /* attempts of a writer; the handler makes one */
#endif

byte mem[WORDS];
byte pos, count;                /* the head: one word, always read and written in one step */
byte tail;

chan buffer[CPUS] = [4] of { byte, byte };
chan rbuffer = [5] of { byte, byte };

bool handling;                  /* the handler runs on CPU 0 */
bool dead[CPUS];
bool outside[CPUS] = true;      /* not in generated code */

byte serial = 0;                /* names records, in the order of their reservation */
byte owed = 0;                  /* reserved, and neither read nor given up */

#define word0 ((id << 2) | n)

/* STEP is one instruction of a thread that is not interrupted; LOCKED waits for the store
 * buffer. A killed thread does none any more. */
#define READY           (me == HANDLER || cpu != 0 || !handling)
#define STEP(x...)         atomic { dead[cpu] || READY; if :: dead[cpu] -> goto gone :: else -> x fi }
#define LOCKED(x...)       atomic { dead[cpu] || READY && len(buffer[cpu]) == 0; if :: dead[cpu] -> goto gone :: else -> x fi }

#define RESERVE pos = h + n; count = (c + 1) % COUNTS; owed++; serial++; id = serial

/* write is the generated code: one attempt. */
inline write()
{
	if :: n = 2 :: n = 3 fi;
again:
	STEP(t = tail);								/* L1 */
	STEP(h = pos; c = count);
	if
	:: h + n - t > UNITS ->							/* L2 */
		LOCKED(skip)	/* lost[event]++: by this one instruction, so always counted */
	:: else ->
#ifdef UNLOCKED
		STEP(RESERVE);
#else
		LOCKED(if :: pos == h && count == c -> RESERVE :: else -> goto again fi);	/* L3 */
#endif
#ifdef COMMIT_FIRST
		STEP(buffer[cpu]!h % UNITS, word0);
#endif
		STEP(buffer[cpu]!h % UNITS + 1, id);				/* L4 */
		if
		:: n == 3 -> STEP(buffer[cpu]!h % UNITS + 2, id)
		:: else
		fi;
#ifndef COMMIT_FIRST
		STEP(buffer[cpu]!h % UNITS, word0)				/* L5 */
#endif
	fi;
	d_step { n = 0; t = 0; h = 0; c = 0; id = 0 }
}

active [CPUS] proctype writer()
{
	byte me = _pid, cpu = _pid, left = RUNS, n, t, h, c, id;

	do
	:: left == 0 -> break
	:: left > 0 ->
		STEP(outside[cpu] = false);
		write();
		STEP(outside[cpu] = true; left--)
	od;
	STEP(dead[cpu] = true);	/* it ends: exit is a death outside of the code */
gone:	skip
}

/* handler interrupts writer 0 once, at any step, and runs to its end first. */
active proctype handler()
{
	byte me = HANDLER, cpu = 0, n, t, h, c, id;
	bool was;

end:
	atomic { !dead[0] -> handling = true; was = outside[0]; outside[0] = false };
	write();
	STEP(outside[0] = was; handling = false);
gone:	skip
}

active proctype killer()
{
end:	if
	:: atomic { !dead[0] -> dead[0] = true }
	:: atomic { !dead[1] -> dead[1] = true }
	fi
}

active proctype drain()
{
	byte a, v;

end:	do
	:: atomic { buffer[0]?a, v -> mem[a] = v }
	:: atomic { buffer[1]?a, v -> mem[a] = v }
	:: atomic { rbuffer?a, v -> if :: a == TAIL -> tail = v :: else -> mem[a] = v fi }
	od
}

byte a, acount;                 /* the reader's own account */

/* sweep copies and zeroes what is committed, up to the head. */
inline sweep()
{
	h = pos;								/* D1 */
	assert(h >= a && h - a <= UNITS);
	do
	:: a == h -> break
	:: a != h ->
		at = a % UNITS;
		w = mem[at];							/* D2 */
		if :: w == 0 -> break :: else fi;
		n = w & 3;
		assert(n >= 2 && a + n <= h);
		assert(mem[at + 1] == w >> 2);					/* D3: not torn */
		if :: n == 3 -> assert(mem[at + 2] == w >> 2) :: else fi;
		atomic {
			assert(w >> 2 > last);					/* in order, none twice */
			last = w >> 2;
			owed--
		};
#ifdef ZERO_LATE
		rbuffer!TAIL, a + n;
#endif
		rbuffer!at, 0;							/* D4 */
		rbuffer!at + 1, 0;
		if :: n == 3 -> rbuffer!at + 2, 0 :: else fi;
		d_step { a = a + n; acount = (acount + 1) % COUNTS; w = 0; n = 0; at = 0 };
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
				owed = owed - lostn;
				i = a;
				do
				:: i == m -> break
				:: i != m -> rbuffer!i % UNITS, 0; i++
				od;
				if
				:: a / UNITS != (m - 1) / UNITS || m % UNITS != 0 && a / UNITS != m / UNITS ->
					rbuffer!UNITS, 0; rbuffer!UNITS + 1, 0
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
	byte h, at, w, n, m, mc, i, lostn, last = 0;
	bool finish = false, reaped = false;

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
	assert(owed == 0);							/* nothing lost uncounted */
	assert(a == pos && acount == count)
}
