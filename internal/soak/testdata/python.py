import heapq, json, re, struct, sys, zlib
from collections import Counter, deque

class Node:
    __slots__ = ("key", "left", "right")
    def __init__(self, key):
        self.key, self.left, self.right = key, None, None
    def insert(self, key):
        side = "left" if key < self.key else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, Node(key))
        else:
            child.insert(key)
    def __iter__(self):
        if self.left:
            yield from self.left
        yield self.key
        if self.right:
            yield from self.right

count, numbers, lines = Counter(), [], []
for line in sys.stdin:
    count.update(re.findall(r"[a-z]{3,}", line))
    numbers.append(int(line.split()[-1]))
    lines.append(re.sub(r"(\w+) (\w+)", lambda m: m[2] + "-" + m[1].upper(), line))
for word, n in sorted(count.items(), key=lambda p: (-p[1], p[0])):
    print(f"{word:10} {n:5d}")
tree = Node(numbers[0])
for n in numbers[1:]:
    tree.insert(n)
assert list(tree) == sorted(numbers)
heap = list(numbers)
heapq.heapify(heap)
print([heapq.heappop(heap) for _ in range(5)], sum(numbers), 3 ** 200 % 1000007)
text = json.dumps({"lines": lines[:5], "n": numbers[:5], "f": [x / 7 for x in range(4)]}, sort_keys=True)
assert json.loads(text)["n"] == numbers[:5]
print(text)
packed = zlib.compress("".join(lines).encode())
assert zlib.decompress(packed).decode() == "".join(lines)
print(zlib.crc32(packed), struct.pack("<IHd", 1, 2, 3.5).hex())
try:
    {}["missing"]
except KeyError as e:
    print("KeyError", e)
def gen():
    q = deque(range(10))
    while q:
        got = yield q.popleft()
        if got:
            q.append(got)
g = gen()
next(g)
print(g.send(77), sum(g), sorted({x * 37 % 101 for x in range(50)})[:9])
with open("written", "w") as f:
    f.writelines(lines)
sys.exit(6)
