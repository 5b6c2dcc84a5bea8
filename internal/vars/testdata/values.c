// A store of orders: 20 functions with parameters as programs have them, called some thousand times, always the same.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

enum state { NEW = 1, PAID, SENT = 40 };
struct span { int from, to; };
struct money { int64_t cents; char currency[4]; };
struct item { const char *name; uint16_t count; unsigned gift : 1, size : 3; struct money price; };
struct order { uint64_t id; enum state state; struct item items[4]; size_t used; struct order *next; };
struct store { struct order *buckets[16]; size_t orders; double rate; struct span ids; };
typedef int (*visitor)(struct order *, void *);

static uint64_t sum;

NOINLINE uint64_t hash(const char *s, uint64_t seed)
{
	while (*s)
		seed = (seed ^ (unsigned char)*s++) * 0x100000001b3;
	return seed;
}
NOINLINE static int in_span(struct span s, int n) { return n >= s.from && n < s.to; }
NOINLINE static struct span widen(struct span s, int n)
{
	if (n < s.from)
		s.from = n;
	if (n >= s.to)
		s.to = n + 1;
	return s;
}
NOINLINE int64_t convert(int64_t cents, double rate, bool up) { return (int64_t)((double)cents * rate) + up; }
NOINLINE static struct money money(int64_t cents, char first, char second)
{
	struct money m = {cents, {first, second, 'D', 0}};
	return m;
}
NOINLINE int add_item(struct order *o, struct item it, short extra)
{
	if (o->used == 4)
		return -1;
	it.count += extra;
	o->items[o->used++] = it;
	return (int)o->used;
}
NOINLINE static struct order *find(const struct store *st, uint64_t id)
{
	for (struct order *o = st->buckets[id % 16]; o; o = o->next)
		if (o->id == id)
			return o;
	return NULL;
}
NOINLINE void link_order(struct store *st, struct order *o)
{
	o->next = st->buckets[o->id % 16];
	st->buckets[o->id % 16] = o;
	st->orders++;
}
NOINLINE static void set_state(struct order *o, enum state to, uint8_t by)
{
	o->state = to;
	sum += by;
}
NOINLINE int64_t total(const struct order *o, unsigned char discount, float tax)
{
	int64_t n = 0;
	for (size_t i = 0; i < o->used; i++)
		n += o->items[i].price.cents * o->items[i].count;
	return n * (100 - discount) / 100 + (int64_t)(tax * 100);
}
NOINLINE static int each(struct store *st, visitor visit, void *arg)
{
	int n = 0;
	for (int i = 0; i < 16; i++)
		for (struct order *o = st->buckets[i]; o; o = o->next)
			n += visit(o, arg);
	return n;
}
NOINLINE static int is_paid(struct order *o, void *arg)
{
	++*(int *)arg;
	return o->state == PAID;
}
NOINLINE static int is_new(struct order *o, void *arg)
{
	return o->state == NEW && o->id < (uint64_t)*(int *)arg;
}
NOINLINE int many(int a, long b, short c, unsigned char d, uint32_t e, int64_t f, int g, char h, const char *i)
{
	return (int)(a + b + c + d + e + f + g + h + *i);
}
NOINLINE static unsigned mix(unsigned a, unsigned b, unsigned rounds, unsigned unused)
{
	(void)unused;
	while (rounds--)
		a = (a << 5 | a >> 27) ^ b++;
	return a;
}
NOINLINE void log_line(const char *level, const char *text, int line)
{
	sum += hash(level, line) + hash(text, line);
}
NOINLINE static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
NOINLINE int median(int *values, size_t n)
{
	qsort(values, n, sizeof *values, compare);
	return values[n / 2];
}
NOINLINE uint64_t depth(struct order *o, uint64_t n) { return o ? depth(o->next, n + 1) + (o->id & 1) : n; }
NOINLINE static bool valid(const struct item *it, int8_t least) { return it->name && it->count >= least && !it->gift; }
NOINLINE struct order *make_order(struct store *st, uint64_t id, const char *name, uint16_t count)
{
	struct order *o = calloc(1, sizeof *o);
	o->id = id;
	set_state(o, NEW, count);
	struct item it = {.name = name, .count = count, .gift = id & 1, .size = id % 5, .price = money((int64_t)id * 199, id % 2 ? 'U' : 'C', id % 3 ? 'S' : 'A')};
	add_item(o, it, (short)(id % 3 - 1));
	link_order(st, o);
	st->ids = widen(st->ids, (int)id);
	return o;
}

int main(void)
{
	static const char *const names[] = {"tea", "a kettle", "", "sugar, brown", "cups"};
	struct store st = {.rate = 1.25};
	setvbuf(stdout, NULL, _IONBF, 0);
	puts("ready");
	getchar();
	for (int i = 0; i < 60; i++) {
		struct order *o = make_order(&st, i * 7u, names[i % 5], (uint16_t)(i * 1000));
		if (i % 3 == 0)
			set_state(find(&st, i * 7u), i % 2 ? PAID : SENT, (uint8_t)i);
		sum += (uint64_t)total(o, (unsigned char)(i % 7), i * 0.5f) + (uint64_t)convert(-i * 1000, st.rate, i & 1);
		sum += (uint64_t)many(-i, -i * 100000l, (short)-i, (unsigned char)(200 + i), 4000000000u + i, INT64_MIN + i, i, (char)('a' + i % 26), names[i % 5]);
		sum += mix(i, sum, 3, 7) + mix(i + 1, i, i % 4, 7);
		sum += (uint64_t)in_span(st.ids, i * 11) + valid(&o->items[0], -1) + valid(&o->items[0], 100);
		log_line(i % 2 ? "info" : "warn", names[i % 5], i);
	}
	int seen = 0, values[] = {5, -3, 9, 0, 22, 7};
	sum += each(&st, is_paid, &seen) + each(&st, is_new, &values[0]) + median(values, 6);
	for (int i = 0; i < 16; i++)
		sum += depth(st.buckets[i], 0);
	printf("%lu\n", sum);
	puts("done");
	getchar();
	return 0;
}
