"""Rewrites source files so that a run-time condition selects each sampled candidate."""


def _rewritten(text, mutants, start, end):
    """Returns text[start:end] with these mutants, none of which crosses the range's ends."""
    out, at = b"", start
    inside = [mutant for mutant in mutants if start <= mutant.start and mutant.end <= end]
    while inside:
        # The outermost mutant of those that begin first.
        outer = min(inside, key=lambda mutant: (mutant.start, -mutant.end))
        inside.remove(outer)
        nested = [mutant for mutant in inside if mutant.end <= outer.end]
        inside = [mutant for mutant in inside if mutant.start >= outer.end]
        out += text[at : outer.start] + _one(text, outer, nested)
        at = outer.end
    return out + text[at:end]


def _one(text, mutant, nested):
    condition = b"::vlmtrain_mutant(%d)" % mutant.number
    pieces = [_rewritten(text, nested, *piece) for piece in mutant.pieces]
    if mutant.kind == "named":
        return mutant.how.removeprefix("text ").encode()
    how, *words = mutant.how.split(" ")
    if how == "operator":
        was, becomes = (word.encode() for word in words)
        return b"(%s ? ((%s) %s (%s)) : ((%s) %s (%s)))" % (condition, pieces[0], becomes, pieces[1], pieces[0], was, pieces[1])
    if how == "negate":
        return b"(%s != static_cast<bool>(%s))" % (condition, pieces[0])
    if how == "remove":
        return b"(%s ? static_cast<void>(0) : static_cast<void>(%s))" % (condition, pieces[0])
    if how == "replace":
        return b"(%s ? %s : %s)" % (condition, mutant.after.encode(), text[mutant.start : mutant.end])
    if how == "negate_return":
        return b"return (%s != static_cast<bool>(%s))" % (condition, pieces[0])
    if how == "return_one_more":
        return b"return (%s ? (%s) + 1 : (%s))" % (condition, pieces[0], pieces[0])
    assert how == "return_nothing", how
    return b"if (%s) return {}; else return %s" % (condition, pieces[0])


def rewrite(text, mutants, header):
    """Returns the rewritten file. Line numbers do not change, so that compiler errors identify the mutant."""
    # An expression with a run-time condition is no constant expression.
    marked = bytearray(text)
    for mutant in mutants:
        if mutant.constexpr_at >= 0:
            marked[mutant.constexpr_at : mutant.constexpr_at + len(b"constexpr")] = b"const    "
    return b'#include "%s"\n#line 1\n' % header.encode() + _rewritten(bytes(marked), mutants, 0, len(marked))
