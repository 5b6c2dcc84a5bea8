// A computation of many kinds of instructions, for the check of register liveness: the
// test destroys at each step of run every register that the analysis calls free, and the
// sum must come out the same.

#include <stdint.h>
#include <stdio.h>

#define FN __attribute__((noinline))

static uint32_t table[256];
static uint32_t words[64];
static uint8_t text[192];

static FN void fill(void)
{
	uint64_t x = 88172645463325252ull;
	for (unsigned i = 0; i < sizeof text; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		text[i] = x >> 11;
	}
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t c = i;
		for (int k = 0; k < 8; k++)
			c = c & 1 ? 0xedb88320 ^ c >> 1 : c >> 1;
		table[i] = c;
	}
}

static FN uint32_t crc(const uint8_t *p, unsigned n)
{
	uint32_t c = ~0u;
	while (n--)
		c = table[(c ^ *p++) & 0xff] ^ c >> 8;
	return ~c;
}

#define ROR(x, n) ((x) >> (n) | (x) << (32 - (n)))

static FN uint32_t sha(const uint8_t *p)
{
	uint32_t h[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	for (int i = 0; i < 16; i++, p += 4)
		words[i] = (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
	for (int i = 16; i < 64; i++)
		words[i] = words[i - 16] + words[i - 7] + (ROR(words[i - 15], 7) ^ ROR(words[i - 2], 19));
	for (int i = 0; i < 64; i++) {
		uint32_t t = h[7] + (ROR(h[4], 6) ^ ROR(h[4], 25)) + ((h[4] & h[5]) ^ (~h[4] & h[6])) + words[i];
		uint32_t u = (ROR(h[0], 2) ^ ROR(h[0], 13)) + ((h[0] & h[1]) ^ (h[0] & h[2]) ^ (h[1] & h[2]));
		h[7] = h[6], h[6] = h[5], h[5] = h[4], h[4] = h[3] + t;
		h[3] = h[2], h[2] = h[1], h[1] = h[0], h[0] = t + u;
	}
	return h[0] ^ h[3] ^ h[7];
}

static FN void sort(int *a, int lo, int hi)
{
	int i = lo, j = hi, p = a[(lo + hi) / 2];
	while (i <= j) {
		while (a[i] < p) i++;
		while (a[j] > p) j--;
		if (i <= j) {
			int t = a[i];
			a[i++] = a[j], a[j--] = t;
		}
	}
	if (lo < j) sort(a, lo, j);
	if (i < hi) sort(a, i, hi);
}

static FN uint64_t divide(uint64_t a, uint64_t b)
{
	uint64_t r = 0;
	for (; b; b >>= 3)
		r = r * 31 + a / b + a % (b | 1) + (a > b ? __builtin_popcountll(a) : __builtin_clzll(b | 1));
	return r;
}

static FN unsigned __int128 wide(unsigned __int128 a, uint64_t b)
{
	return a * b + (a >> 17) - (a < b);
}

static FN double series(int n)
{
	double s = 0, x = 1;
	for (int i = 1; i < n; i++)
		s += x / i, x = s > 1.5 ? -x : x * 0.5 + i;
	return s;
}

struct pair { uint64_t a, b; };

static FN struct pair swap(struct pair p, int c)
{
	return (struct pair){ c & 1 ? p.b : p.a ^ c, c & 2 ? p.a : p.b + c };
}

static FN uint64_t parse(const uint8_t *p, const uint8_t *e)
{
	uint64_t v = 0;
	for (; p < e; p++) {
		switch (*p >> 5) {
		case 0: v += *p; break;
		case 1: v = v << 3 | v >> 61; break;
		case 2: v ^= (uint64_t)*p << 40; break;
		case 3: v *= 5; break;
		case 4: v -= p[-1]; break;
		case 5: v = ~v; break;
		case 6: v += v >> 9; break;
		default: v ^= crc(p, 2);
		}
	}
	return v;
}

FN uint64_t run(void)
{
	int a[64];
	uint64_t sum;
	fill();
	for (int i = 0; i < 64; i++)
		a[i] = text[i] * (i & 1 ? 1 : -3);
	sort(a, 0, 63);
	sum = crc(text, sizeof text) + sha(text) + sha(text + 64);
	for (int i = 0; i < 64; i++)
		sum = sum * 3 + a[i];
	sum += divide(sum, 0x123456789abcdef) + (uint64_t)(wide(sum, 77) >> 40);
	for (int i = 0; i < 4; i++) {
		struct pair p = swap((struct pair){ sum, 99 }, i);
		sum += p.a * 2 + p.b;
	}
	return sum + (uint64_t)(series(40) * 1e6) + parse(text + 1, text + sizeof text);
}

int main(void)
{
	printf("%llx\n", (unsigned long long)run());
	return 0;
}
