"""Hand-written faults, built in addition to the sampled ones; tests must catch all of them."""

from .candidates import Candidate

#: Number, file, old text, new text, description; {mutant} is the condition that selects the mutant.
NAMED = [
    (901, "src/train/step/look_ahead_client.cpp", "const int64_t max_bytes = limit_bytes_ / kMaxMarginDivisor;",
     "if ({mutant}) return; const int64_t max_bytes = limit_bytes_ / kMaxMarginDivisor;", "the margin after a failure is not raised"),
    (902, "src/train/step/look_ahead_client.cpp", "std::chrono::duration<double>(timeout_seconds)",
     "std::chrono::duration<double>(({mutant} ? 10000 : 1) * timeout_seconds)", "the timeout of the look-ahead × 10,000"),
    (903, "src/train/loop/step_runner.cpp", "if (look_ahead_) look_ahead_->mark_desynchronized();",
     "if (look_ahead_ && !{mutant}) look_ahead_->mark_desynchronized();",
     "no mark_desynchronized() after a save"),
    (904, "src/train/loop/watches.cpp", "std::max_element(bytes.begin(), bytes.end())",
     "({mutant} ? std::min_element(bytes.begin(), bytes.end()) : std::max_element(bytes.begin(), bytes.end()))",
     "the least growing component is named"),
    (905, "src/train/checkpoint/saved_settings.cpp", "if (!determines_total_steps(key)) fingerprint",
     "if (!determines_total_steps(key) && !({mutant} && key == \"training.weight_decay\")) fingerprint",
     "a key missing in the run's fingerprint"),
    (906, "src/train/loop/step_runner.cpp", "if (look_ahead_) look_ahead_->increase_margin();",
     "if (look_ahead_ && !{mutant}) look_ahead_->increase_margin();",
     "no increase_margin() after a failure"),
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
