#!/usr/bin/env python3
"""Checks a raw image of a namespace that `nvme-perf verify` has written. Shares no code with it.

    tests/check_image.py IMAGE --block 512 [--seed N] [--offset BLOCK] [--blocks N] [--generation N]

Prints how many blocks are right; exit status 1 with the first block that is not, 2 for wrong usage.

A block, all numbers little-endian: magic "DBELLVFY", LBA (u64), generation (u64), seed (u64), CRC-32C of
bytes 40 to the end (u32), zero (u32), then words of 8 bytes from splitmix64, started with
mix(mix(mix(seed) ^ lba) ^ generation).
"""

import argparse
import struct
import sys

HEADER = struct.Struct("<8sQQQII")
WORD = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(z):
    z = (z ^ (z >> 30)) * FIRST & WORD
    z = (z ^ (z >> 27)) * SECOND & WORD
    return z ^ (z >> 31)


class Words:
    """The pseudo-random words of a block, all at once: each has 128 bits of one large number, in which a
    product of two words cannot reach its neighbour."""

    def __init__(self, count):
        self.bytes = 16 * count
        self.each = sum(1 << 128 * n for n in range(count))
        self.low = self.each * WORD
        self.steps = sum(((n + 1) * GAMMA & WORD) << 128 * n for n in range(count))

    def of(self, seed, lba, generation):
        state = mix(mix(mix(seed) ^ lba) ^ generation)
        z = state * self.each + self.steps & self.low
        z = (z ^ z >> 30 & self.low) * FIRST & self.low
        z = (z ^ z >> 27 & self.low) * SECOND & self.low
        z ^= z >> 31 & self.low
        return memoryview(z.to_bytes(self.bytes, "little")).cast("Q")[::2].tobytes()


def crc32c_tables():
    """What the lower and the upper half of a dword add to the checksum two and four bytes later."""

    def after(value, bits):
        for _ in range(bits):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value

    byte = [after(n, 8) for n in range(256)]
    shift = lambda c: byte[c & 255] ^ c >> 8
    upper = [shift(shift(n)) for n in range(65536)]
    lower = [shift(shift(c)) for c in upper]
    return lower, upper


LOWER, UPPER = crc32c_tables()


def crc32c(data):
    c = 0xFFFFFFFF
    for dword in memoryview(data).cast("I"):
        c ^= dword
        c = LOWER[c & 0xFFFF] ^ UPPER[c >> 16]
    return c ^ 0xFFFFFFFF


def wrong(block, lba, words, options):
    """What is wrong with a block, or nothing."""
    magic, of_lba, generation, of_seed, checksum, zero = HEADER.unpack_from(block)
    if magic != b"DBELLVFY":
        return "is all zeros" if not any(block) else f"has the magic {magic!r}"
    if of_lba != lba:
        return f"says that it is block {of_lba}"
    if options.seed is not None and of_seed != options.seed:
        return f"has the seed {of_seed}"
    if generation == 0 or options.generation not in (None, generation):
        return f"has the generation {generation}"
    if zero:
        return f"has {zero:#x} where 0 belongs"
    rest = block[HEADER.size :]
    if crc32c(rest) != checksum:
        return f"has the checksum {crc32c(rest):#010x} and says {checksum:#010x}"
    if rest != words.of(of_seed, lba, generation):
        return "has other words than its header says"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image")
    parser.add_argument("--block", type=int, required=True, help="bytes of a block")
    parser.add_argument("--seed", type=int, help="the seed that every block must have")
    parser.add_argument("--generation", type=int, help="the generation that every block must have")
    parser.add_argument("--offset", type=int, default=0, help="the first block to check")
    parser.add_argument("--blocks", type=int, help="how many blocks to check; all if not given")
    options = parser.parse_args()
    if options.block < 48 or options.block % 8:
        parser.error("--block is at least 48, and a multiple of 8")
    if crc32c(bytes(32)) != 0x8A9136AA:
        sys.exit("crc32c is broken")
    words = Words((options.block - HEADER.size) // 8)
    right, seeds, generations = 0, set(), set()
    with open(options.image, "rb") as image:
        image.seek(options.offset * options.block)
        while options.blocks is None or right < options.blocks:
            block, lba = image.read(options.block), options.offset + right
            if not block and options.blocks is None:
                break
            reason = wrong(block, lba, words, options) if len(block) == options.block else "is cut short"
            if reason:
                print(f"{options.image}: block {lba} {reason} ({right} blocks before it are right)")
                return 1
            seeds.add(struct.unpack_from("<Q", block, 24)[0])
            generations.add(struct.unpack_from("<Q", block, 16)[0])
            right += 1
    print(f"{options.image}: {right} blocks of {options.block} bytes are right"
          f" (seeds {sorted(seeds)[:5]}, generations {sorted(generations)[:9]})")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
