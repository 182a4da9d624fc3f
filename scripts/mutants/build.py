"""Builds one program that contains all mutants."""

import json
import multiprocessing
import pathlib
import re
import subprocess

from . import candidates, draw, named, rewrite

PROGRAMS = {"train": "train_tests", "evaluation": "evaluation_tests", "planner": "planner_tests", "engine": "engine_tests"}


def configure(root, build, *more):
    subprocess.run(["cmake", "-S", root, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *more], check=True,
                   stdout=subprocess.DEVNULL)


def _write_if_changed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != text:
        path.write_bytes(text)


def _texts(root):
    return {str(path.relative_to(root)): path.read_bytes() for part in candidates.PARTS
            for path in (root / "src" / part).rglob("*.cpp")}


def _write_sources(root, texts, sources, sampled):
    for name, text in texts.items():
        mutants = [mutant for mutant in sampled if mutant.path == name]
        _write_if_changed(sources / name, rewrite.rewrite(text, mutants, f"{root}/scripts/mutants/chooser.h"))


def _refused(sampled, output):
    """Returns the mutants that the compiler's errors refer to."""
    refused = set()
    for path, line in re.findall(r"(src/[\w/]+\.cpp):(\d+):\d+: (?:error|note)", output):
        refused |= {m.key() for m in sampled if m.path == path and m.line <= int(line) <= m.last_line}
    for name in re.findall(r"the value of ‘(?:[\w:{}]*::)?(\w+)’ is not usable in a constant expression", output):
        refused |= {m.key() for m in sampled if m.constexpr_at >= 0 and re.search(rf"\b{name}\b", m.before)}
    return refused


def make(root, build, count, seed, jobs, targets):
    """Samples and builds mutants; returns the contents of mutants.json."""
    configure(root, build)
    texts = _texts(root)
    with multiprocessing.Pool(jobs) as pool:
        all_candidates = candidates.find(root, build, pool)
    lines = {path: texts[path].count(b"\n") for path in {c.path for c in all_candidates}}
    # A named mutant excludes others on its lines.
    extra = list(named.named(root))
    all_candidates = [c for c in all_candidates if not any(c.path == n.path and c.line == n.line for n in extra)]
    refused = set()
    sources = build / "mutated"
    while True:
        sampled = draw.draw(all_candidates, lines, count, seed, refused) + extra
        for mutant in sampled:
            mutant.last_line = mutant.line + texts[mutant.path][mutant.start : mutant.end].count(b"\n")
        if _texts(root) != texts:
            raise SystemExit("the sources changed during the build; start again")
        _write_sources(root, texts, sources, sampled)
        configure(root, build, f"-DVLMTRAIN_MUTANTS={sources}")
        done = subprocess.run(["cmake", "--build", build, f"-j{jobs}", "--target", *targets, "--", "-k", "0"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            break
        more = _refused(sampled, done.stdout)
        print(f"{len(more)} of {len(sampled)} do not compile", flush=True)
        if not more - refused:
            raise SystemExit(done.stdout[-8000:])
        refused |= more
    listed = [{name: getattr(mutant, name) for name in ("number", "path", "line", "kind", "function", "before", "after")}
              for mutant in sampled]
    (build / "mutants.json").write_text(json.dumps(listed, indent=1) + "\n")
    print(f"{len(all_candidates)} candidates, {len(sampled)} drawn, {len(refused)} did not compile")
    return listed
