"""Samples candidates in proportion to the lines of each file; deterministic for the same files."""

import collections
import random


def quotas(lines, count):
    """Distributes `count` over files in proportion to their `lines`, at least one each, by largest remainder."""
    exact = {path: count * n / sum(lines.values()) for path, n in lines.items()}
    shares = {path: max(1, int(share)) for path, share in exact.items()}
    by_remainder = sorted(lines, key=lambda path: (shares[path] - exact[path], path))
    for path in by_remainder:
        if sum(shares.values()) < count:
            shares[path] += 1
    for path in reversed(by_remainder):
        if sum(shares.values()) > count and shares[path] > 1:
            shares[path] -= 1
    return shares


def order(candidates, seed):
    """Yields the candidates of one file in sampling order: all kinds are equally likely, and no line has two."""
    generator = random.Random(f"{seed}:{candidates[0].path}")
    kinds = collections.defaultdict(list)
    for candidate in candidates:
        kinds[candidate.kind].append(candidate)
    lines = set()
    while kinds:
        kind = generator.choice(sorted(kinds))
        candidate = kinds[kind].pop(generator.randrange(len(kinds[kind])))
        if not kinds[kind]:
            del kinds[kind]
        if candidate.line not in lines:
            lines.add(candidate.line)
            yield candidate


def draw(candidates, lines, count, seed, refused):
    """Returns the sampled candidates. `refused`: keys of candidates that do not compile; others of the same file replace them."""
    files = collections.defaultdict(list)
    for candidate in candidates:
        files[candidate.path].append(candidate)
    usable = {path: [candidate for candidate in order(all_candidates, seed) if candidate.key() not in refused]
              for path, all_candidates in files.items()}
    shares = quotas({path: lines[path] for path in files}, count)
    # If a file has too few candidates, the files with most unused ones contribute more.
    for path in usable:
        while shares[path] > len(usable[path]):
            shares[path] -= 1
            shares[max(sorted(usable), key=lambda other: len(usable[other]) - shares[other])] += 1
    sampled = []
    for path in sorted(files):
        sampled += sorted(usable[path][: shares[path]], key=lambda candidate: candidate.start)
    for number, candidate in enumerate(sampled, 1):
        candidate.number = number
    return sampled
