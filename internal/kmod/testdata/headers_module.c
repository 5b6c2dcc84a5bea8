// What the headers promise, checked where the module runs: headers_check gives the line of the first that does not hold.
#include <linux/module.h>
#include <linux/atomic.h>
#include <linux/bitops.h>
#include <linux/ctype.h>
#include <linux/jiffies.h>
#include <linux/kprobes.h>
#include <linux/limits.h>
#include <linux/list.h>
#include <linux/math64.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/stat.h>
#include <linux/uaccess.h>

#define CHECK(x)                          \
	do {                              \
		if (!(x))                 \
			return __LINE__;  \
	} while (0)

static const unsigned int number = 0x87654321;
static const s8 small = -3;
static const char *const text = "text";

int headers_check(void)
{
	unsigned int v = 0;
	s8 s = 0;
	const char *p = NULL;
	int i, n;
	unsigned int u;
	unsigned long ul;
	u8 b;
	bool on;
	s64 d = -7;
	char buf[16];
	char *end;
	LIST_HEAD(list);
	struct one {
		struct list_head list;
		int n;
	} some[3], *o, *next;

	CHECK(!get_user(v, &number) && v == number);
	CHECK(!get_user(s, &small) && s == -3);
	CHECK(!get_user(p, &text) && p == text);
	CHECK(!put_user(5u, &u) && u == 5);

	CHECK(kstrtoint("-12\n", 0, &i) == 0 && i == -12);
	CHECK(kstrtoint("2147483648", 0, &i) == -ERANGE);
	CHECK(kstrtoint("18446744073709551617", 0, &i) == -ERANGE);
	CHECK(kstrtouint("0x", 0, &u) == -EINVAL && kstrtouint("", 0, &u) == -EINVAL && kstrtouint("08", 0, &u) == -EINVAL);
	CHECK(kstrtoint("-+5", 0, &i) == -EINVAL && kstrtoint("--5", 0, &i) == -EINVAL && kstrtoint("5 ", 0, &i) == -EINVAL);
	CHECK(kstrtoul("0xffffffffffffffff", 16, &ul) == 0 && ul == ULONG_MAX);
	CHECK(kstrtou8("256", 10, &b) == -ERANGE && kstrtou8("0377", 0, &b) == 0 && b == 255);
	CHECK(simple_strtoul("0xg", &end, 0) == 0 && *end == 'x');
	CHECK(!kstrtobool("yes", &on) && on && !kstrtobool("off", &on) && !on && !kstrtobool("1", &on) && on && kstrtobool("maybe", &on));

	CHECK(IS_ENABLED(CONFIG_KPROBES) && !IS_ENABLED(CONFIG_NONE_OF_THOSE));
#if !IS_ENABLED(CONFIG_X86_64) || IS_ENABLED(CONFIG_NONE_OF_THOSE)
	CHECK(0);
#endif
	n = 10;
	CHECK(max(n++, 3) == 10 && n == 11 && min_t(u8, 300, 50) == 44 && clamp(7, 1, 5) == 5);
	i = do_div(d, 4);
	CHECK(d == (s64)((u64)-7 / 4) && i == (int)((u64)-7 % 4));
	n = 3;
	CHECK(roundup(10, n++) == 12 && n == 4 && rounddown(10, 4) == 8 && DIV_ROUND_UP(9, 4) == 3);

	CHECK(strscpy(buf, "a text that is too long") == -E2BIG && !strcmp(buf, "a text that is "));
	CHECK(strscpy(buf, "fits", 5) == 4 && strlcpy(buf, "0123456789abcdefgh", sizeof buf) == 18 && strlen(buf) == 15);
	CHECK(snprintf(buf, 8, "%#o|%pS", 8, (void *)0) == 20 && !strcmp(buf, "010|000"));
	CHECK(!strcmp(strstr("one two", "two"), "two") && !strstr("one", "onee") && strrchr("a/b/c", '/')[1] == 'c');
	memcpy(buf, "0123456789", 11);
	memmove(buf + 2, buf, 5);
	CHECK(!memcmp(buf, "0101234789", 11) && memchr(buf, '4', 10) == buf + 6);
	CHECK(isspace('\t') && tolower('Q') == 'q' && isxdigit('f') && !isdigit('x'));

	for (i = 0; i < 3; i++) {
		some[i].n = i;
		list_add_tail(&some[i].list, &list);
	}
	n = 0;
	list_for_each_entry_safe(o, next, &list, list) {
		CHECK(o->n == n++);
		list_del(&o->list);
	}
	CHECK(n == 3 && list_empty(&list));

	CHECK(fls(0) == 0 && fls(8) == 4 && ilog2(1000) == 9 && hweight32(0xf0f) == 8 && is_power_of_2(64) && GENMASK(5, 2) == 0x3c);
	CHECK(time_after(5UL, 3UL) && !time_before(5UL, 3UL) && jiffies_to_msecs(msecs_to_jiffies(20)) == 20);
	CHECK(NAME_MAX == 255 && S_IRUGO == 0444);
	{
		struct pt_regs regs = {.ax = -5, .di = 1, .r9 = 6, .flags = 2};
		CHECK(regs_return_value(&regs) == regs.eax && regs_get_kernel_argument(&regs, 5) == 6 && !user_mode(&regs) && regs.eflags == 2);
		CHECK(sizeof regs == 21 * 8 && offsetof(struct pt_regs, ip) == 16 * 8 && offsetof(struct pt_regs, orig_ax) == 15 * 8);
	}
	{
		char *a = kmalloc(100, GFP_KERNEL), *z = kzalloc(40, GFP_KERNEL);
		CHECK(a && z && ((unsigned long)a & 15) == 0 && !z[39]);
		memset(a, 1, 100);
		kfree(a);
		CHECK(kmalloc(100, GFP_KERNEL) == a && !kmalloc(1UL << 60, GFP_KERNEL) && !kcalloc(1UL << 40, 1UL << 40, GFP_KERNEL));
	}
	return 0;
}
