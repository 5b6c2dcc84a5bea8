// Leaves frames by C++ exceptions.
//
//	exc     commands: go N, count, quit
//
// Each round enters descend DEPTH = i%8 + 1 times recursively; the innermost throws when i is
// odd, and every fourth frame on the way catches and rethrows. "unwound" counts frames left by
// an exception, "dropped" destructors that ran for it, "caught" what main caught.
#include "prog.h"
#include <stdexcept>
#include <string>

static struct {
	uint64_t entered, returned, unwound, dropped, rethrown, caught, bad;
} n;

struct Guard {
	bool *ok;
	~Guard() { n.dropped += !*ok; }
};

class Walker {
public:
	virtual ~Walker() = default;
	NOINLINE virtual uint64_t descend(uint64_t depth, bool fail, uint64_t v);
};

uint64_t Walker::descend(uint64_t depth, bool fail, uint64_t v) {
	bool ok = false;
	Guard guard{&ok};
	uint64_t r = v;
	n.entered++;
	if (depth == 1) {
		if (fail)
			throw std::runtime_error("round " + std::to_string(v));
	} else if (depth % 4 == 0) {
		try {
			r = descend(depth - 1, fail, v) + 1;
		} catch (const std::exception &) {
			n.rethrown++;
			throw;
		}
	} else {
		r = descend(depth - 1, fail, v) + 1;
	}
	ok = true;
	n.returned++;
	return r;
}

template <typename T> NOINLINE T twice(T v) { return v + v; }

static void round_(Walker &w, uint64_t i) {
	uint64_t depth = i % 8 + 1;
	try {
		n.bad += w.descend(depth, i % 2, i) != i + depth - 1;
		n.bad += i % 2;
	} catch (const std::runtime_error &e) {
		n.caught++;
		n.unwound += depth;
		n.bad += e.what() != "round " + std::to_string(i);
	}
	n.bad += twice<uint64_t>(i) != 2 * i;
	n.bad += twice<std::string>("ab") != "abab";
}

static void report() {
	say("{\"descend\":%" PRIu64 ",\"returned\":%" PRIu64 ",\"unwound\":%" PRIu64 ",\"dropped\":%" PRIu64
	    ",\"rethrown\":%" PRIu64 ",\"caught\":%" PRIu64 ",\"bad\":%" PRIu64 "}",
	    n.entered, n.returned, n.unwound, n.dropped, n.rethrown, n.caught, n.bad);
}

int main() {
	char line[256];
	Walker w;
	say("ready");
	while (command(line) && !is(line, "quit")) {
		if (is(line, "go"))
			for (uint64_t i = 0, max = number(line, "go", 1); i < max; i++)
				round_(w, i);
		report();
	}
	report();
	return 0;
}
