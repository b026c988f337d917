# SPDX-License-Identifier: MIT
"""What a program would hold if mapping cost nothing: large blocks in one range of addresses, each in
the smallest free piece that it fits into, and a unit held only as long as a block lies on part of
it; small blocks in units of their own, with nothing lost between them. No lower bound: another order
of blocks may do with less."""
from bisect import bisect_left, insort
from collections import Counter

UNIT = 2 << 20
GRANULE = 16 << 10
SMALL = 1 << 20
SMALL_STEP = 512


def align_up(size, step):
    return -(-size // step) * step


class Addresses:
    """Free pieces of a range that goes on for ever, united where they meet."""

    def __init__(self):
        self._by_size = []  # (size, start)
        self._ends, self._sizes = {}, {}  # start by end; size by start
        self._top = 0

    def _add(self, start, size):
        insort(self._by_size, (size, start))
        self._sizes[start] = size
        self._ends[start + size] = start

    def _remove(self, start):
        size = self._sizes.pop(start)
        del self._ends[start + size]
        del self._by_size[bisect_left(self._by_size, (size, start))]
        return size

    def take(self, size):
        at = bisect_left(self._by_size, (size, 0))
        if at < len(self._by_size):
            start = self._by_size[at][1]
            left = self._remove(start) - size
            if left != 0:
                self._add(start + size, left)
            return start
        start = self._ends.get(self._top, self._top)
        if start != self._top:
            self._remove(start)
        self._top = start + size
        return start

    def give(self, start, size):
        if start in self._ends:
            before = self._ends[start]
            size += self._remove(before)
            start = before
        if start + size in self._sizes:
            size += self._remove(start + size)
        self._add(start, size)


class Units:
    """How many are held. Only a block's first and last one can be another's, too."""

    def __init__(self):
        self.held = 0
        self._users = Counter()

    def use(self, start, size, sign):
        first, last = start // UNIT, (start + size - 1) // UNIT
        self.held += sign * max(last - first - 1, 0)
        for unit in {first, last}:
            before = self._users[unit] != 0
            self._users[unit] += sign
            self.held += (self._users[unit] != 0) - before


def floor_bytes(path):
    """The most that is held at once for a text trace."""
    addresses, units, live = Addresses(), Units(), {}
    small = peak = 0
    with open(path, encoding="ascii") as lines:
        for line in lines:
            kind, name, *rest = line.split()
            if kind == "a" and int(rest[0]) <= SMALL:
                live[name] = (None, align_up(int(rest[0]), SMALL_STEP))
                small += live[name][1]
            elif kind == "a":
                size = align_up(int(rest[0]), GRANULE)
                live[name] = (addresses.take(size), size)
                units.use(*live[name], 1)
            else:
                start, size = live.pop(name)
                if start is None:
                    small -= size
                else:
                    units.use(start, size, -1)
                    addresses.give(start, size)
            peak = max(peak, units.held * UNIT + align_up(small, UNIT))
    return peak
