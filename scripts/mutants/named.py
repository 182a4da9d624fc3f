"""Hand-written faults, built in addition to the sampled ones; tests must catch all of them."""

from .candidates import Candidate

#: Number, file, old text, new text, description; {mutant} is the condition that selects the mutant.
NAMED = [
    (901, "src/train/step/look_ahead_client.cpp", "const int64_t most = limit_bytes_ / kMostShare;",
     "if ({mutant}) return; const int64_t most = limit_bytes_ / kMostShare;", "the margin after a failure is not raised"),
    (902, "src/train/step/look_ahead_client.cpp", "std::chrono::duration<double>(patience)",
     "std::chrono::duration<double>(({mutant} ? 10000 : 1) * patience)", "the look-ahead's patience × 10,000"),
    (903, "src/train/loop/training_loop.cpp", "if (twin_) twin_->diverge();", "if (twin_ && !{mutant}) twin_->diverge();",
     "no diverge() after a save"),
    (904, "src/train/watch/memory_watch.cpp", "std::max_element(bytes.begin(), bytes.end())",
     "({mutant} ? std::min_element(bytes.begin(), bytes.end()) : std::max_element(bytes.begin(), bytes.end()))",
     "the least growing component is named"),
    (905, "src/train/checkpoint/run_changes.cpp", "if (!says_how_long(key)) fingerprint",
     "if (!says_how_long(key) && !({mutant} && key == \"training.weight_decay\")) fingerprint",
     "a key missing in the run's fingerprint"),
    (906, "src/train/loop/training_loop.cpp", "if (twin_) twin_->raise_margin();", "if (twin_ && !{mutant}) twin_->raise_margin();",
     "no raise_margin() after a failure"),
]


def named(root):
    for number, path, text, becomes, what in NAMED:
        source = (root / path).read_bytes()
        if source.count(text.encode()) != 1:
            print(f"mutant {number} ({what}) is skipped: {path} does not have exactly one {text!r}")
            continue
        start = source.index(text.encode())
        after = becomes.replace("{mutant}", f"::vlmtrain_mutant({number})")
        yield Candidate(path, "named", start, start + len(text.encode()), source.count(b"\n", 0, start) + 1, [], text, what,
                        "text " + after, number=number)
