// A library with its readers: 20 functions and methods with parameters as C++ programs have them, called always the same.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#define NOINLINE __attribute__((noinline))

namespace shelf {

enum class Kind : uint8_t { Novel = 1, Map = 200 };
struct Point { int x, y; };
struct Box { long left, top, right; };

class Book {
public:
	NOINLINE Book(std::string title, Kind kind, uint32_t pages) : title_(std::move(title)), kind_(kind), pages_(pages) {}
	virtual ~Book() = default;
	NOINLINE virtual int shelve(int row, bool front) { return row_ = front ? row : -row; }
	NOINLINE uint32_t read(uint32_t from, uint32_t count) const { return from + count > pages_ ? pages_ : from + count; }
	NOINLINE bool is(Kind k) const noexcept { return k == kind_; }
	NOINLINE static int compare(const Book &a, const Book &b) { return a.title_.compare(b.title_) < 0; }
	std::string title_;
	Kind kind_;
	uint32_t pages_;
	int row_ = 0;
};

class Atlas final : public Book {
public:
	NOINLINE Atlas(std::string title, Point origin) : Book(std::move(title), Kind::Map, 40), origin_(origin) {}
	NOINLINE int shelve(int row, bool front) override { return row_ = row + front + origin_.x; }
	NOINLINE long distance(Point to, long scale) const { return ((origin_.x - to.x) + (origin_.y - to.y)) * scale; }
	Point origin_;
};

template <typename T> NOINLINE T largest(T a, T b, const T &least) { return a > b ? (a > least ? a : least) : (b > least ? b : least); }

class Library {
public:
	NOINLINE size_t add(std::unique_ptr<Book> book, int64_t shelf) { books_.push_back(std::move(book)); last_ = shelf; return books_.size(); }
	NOINLINE const Book *find(const std::string &title, size_t from) const
	{
		for (size_t i = from; i < books_.size(); i++)
			if (books_[i]->title_ == title)
				return books_[i].get();
		return nullptr;
	}
	NOINLINE int lend(Book *book, const char *reader, short days) { loans_.emplace_back(reader, days); return book->row_ + days; }
	NOINLINE int64_t area(Box b, unsigned char margin) const { return (b.right - b.left) * b.top + margin + last_; }
	NOINLINE size_t count(bool (*want)(const Book &, long), long arg) const
	{
		size_t n = 0;
		for (const auto &b : books_)
			n += want(*b, arg);
		return n;
	}
	std::vector<std::unique_ptr<Book>> books_;
	std::vector<std::pair<std::string, short>> loans_;
	int64_t last_ = 0;
};

NOINLINE static bool thick(const Book &b, long pages) { return b.pages_ > pages; }
NOINLINE static uint64_t digest(const std::vector<int> &values, uint64_t seed)
{
	for (int v : values)
		seed = seed * 31 + v;
	return seed;
}
NOINLINE static void scale(std::vector<int> &values, int by, int &sum)
{
	for (int &v : values)
		sum += v *= by;
}
NOINLINE static Point moved(Point p, int8_t dx, int8_t dy) { return {p.x + dx, p.y + dy}; }
NOINLINE static std::string quoted(const std::string &s, char mark) { return mark + s + mark; }
NOINLINE double rated(double price, float rate, int count) { return price * rate * count; }
NOINLINE static int deep(int n, const Point *at) { return n ? deep(n - 1, at) + at->x : at->y; }

} // namespace shelf

using namespace shelf;

int main()
{
	setvbuf(stdout, nullptr, _IONBF, 0);
	puts("ready");
	getchar();
	Library lib;
	uint64_t sum = 0;
	std::vector<int> values;
	for (int i = 0; i < 40; i++) {
		std::string title = (i % 2 ? "The long way number " : "Map ") + std::to_string(i);
		Point p{i, -i};
		if (i % 3)
			sum += lib.add(std::make_unique<Book>(title, Kind::Novel, i * 11), -i);
		else
			sum += lib.add(std::make_unique<Atlas>(title, p), int64_t(1) << i);
		Book *b = lib.books_.back().get();
		sum += b->shelve(i, i % 4 == 0) + b->read(i, 400) + b->is(Kind::Map) + b->is(Kind::Novel);
		if (auto *a = dynamic_cast<Atlas *>(b))
			sum += a->distance(moved(p, int8_t(-i), 3), 1000000007L * i);
		sum += lib.find(title, i / 2) == b;
		sum += lib.lend(b, title.c_str(), short(i * 500));
		sum += lib.area({i, 2 * i, 3 * i}, uint8_t(i * 9)) + Book::compare(*b, *lib.books_[0]);
		sum += largest<int>(i, 7, -1) + largest<long>(-i, -7L, i);
		values.push_back(i);
		int total = 0;
		scale(values, i % 3 - 1, total);
		sum += digest(values, sum) + total + quoted(title, '"').size() + uint64_t(rated(2.5, 0.5f, i)) + deep(i % 5, &p);
	}
	sum += lib.count(thick, 100);
	printf("%lu\ndone\n", sum);
	getchar();
}
