# SPDX-License-Identifier: MIT
"""Writes text traces: what a program asks of its allocator, one event a line (traces/README.md)."""
import gzip


class Trace:
    def __init__(self, path):
        self._file = open(path, "w", encoding="ascii")
        self._count = 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._file.close()

    def alloc(self, size):
        self._count += 1
        self._file.write(f"a {self._count} {max(int(size), 1)} 0\n")
        return self._count

    def free(self, *blocks):
        for block in blocks:
            self._file.write(f"f {block}\n")

    def touch(self, size):
        """A block that is needed for a moment."""
        self.free(self.alloc(size))


def scale(source, path, factor):
    """A copy of a trace, compressed or not, with all sizes scaled."""
    opener = gzip.open if source.endswith(".gz") else open
    with opener(source, "rt", encoding="ascii") as lines, \
            open(path, "w", encoding="ascii") as copy:
        for line in lines:
            words = line.split()
            if words[0] == "a":
                words[2] = str(max(int(int(words[2]) * factor), 1))
            copy.write(" ".join(words) + "\n")
