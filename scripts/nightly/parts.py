"""The parts of the nightly run, in order, with their covered paths and steps."""

import dataclasses
import os
import shlex
import subprocess

BUILD = ("CMakeLists.txt", "CMakePresets.json", "cmake", "parts.txt")
CODE = (*BUILD, "include", "src")
FUZZ_SECONDS = 300
TIDY_FILES = 8  # of a step of clang-tidy, as many as a batch of the build has
LEAST_MUTANTS_CAUGHT = 85  # percent; docs/contributing/testing.md has the score

# Options of the sanitizers: some tests request huge allocations, LibTorch leaks, the virtual GPU is preloaded.
ASAN = {
    "GTEST_FILTER": "-OutOfMemoryDetectionTest.DetectsHostErrors:HostMallocTest.*",
    "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1:verify_asan_link_order=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "OMP_WAIT_POLICY": "passive",
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A shell command. If a step that is needed fails, the part ends."""

    name: str
    command: str
    environment: dict = dataclasses.field(default_factory=dict)
    needed: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """A part passes if all steps do. Its result is valid until something in `paths` changes.

    limits: settings that reduce its checks; with them, no result is written.
    """

    name: str
    about: str
    paths: tuple
    steps: tuple
    limits: str = ""


def groups(parts):
    """Returns the parts of parts.txt in three groups, each about a third of the sources."""
    first, second = parts.index("nn"), parts.index("distributed")
    return {"low": parts[:first], "middle": parts[first:second], "high": parts[second:]}


def programs(root, group):
    return [f"{part}_tests" for part in group if any((root / "tests" / part).glob("*.cpp"))]


def debug(root, parts):
    # Without debug information, which doubles the build time.
    configure = Step("configure", "cmake --preset debug -B build/nightly/debug -DCMAKE_CXX_FLAGS_DEBUG=-O0", needed=True)
    targets = {name: ["--target", *programs(root, group)] for name, group in groups(parts).items()} | {"rest": []}
    for name, target in targets.items():
        build = Step("build", shlex.join(["cmake", "--build", "build/nightly/debug", *target, "--", "-k", "0"]))
        about = "debug build, every file by itself, so that missing includes show"
        yield Part(f"debug-{name}", about, (*CODE, "tests"), (configure, build))


def asan(root, parts):
    about = "unit tests under AddressSanitizer and UndefinedBehaviorSanitizer"
    configure = Step("configure", "cmake --preset asan", needed=True)
    ctest = f"ctest --preset asan --parallel {os.cpu_count()}"
    for name, group in groups(parts).items():
        build = Step("build", shlex.join(["cmake", "--build", "--preset", "asan", "--target", *programs(root, group)]), needed=True)
        test = Step("test", f"{ctest} --no-tests=error --tests-regex '^({'|'.join(group)})(\\.|$)'", ASAN)
        yield Part(f"asan-{name}", about, (*CODE, "tests"), (configure, build, test))
    build = Step("build", "cmake --build --preset asan", needed=True)
    test = Step("test", f"{ctest} --exclude-regex '^({'|'.join(parts)})(\\.|$)'", ASAN)
    yield Part("asan-rest", about, (*CODE, "tests"), (configure, build, test))


def tidy(root, parts):
    for index, part in enumerate(parts):
        files = [str(path.relative_to(root)) for path in sorted((root / "src" / part).rglob("*.cpp"))]
        chunks = [files[first : first + TIDY_FILES] for first in range(0, len(files), TIDY_FILES)]
        steps = tuple(Step(chunk[0], shlex.join(["scripts/lint.sh", "--tidy-files", *chunk])) for chunk in chunks)
        headers = tuple(f"include/vlmtrain/{name}" for name in parts[: index + 1] if (root / "include/vlmtrain" / name).is_dir())
        paths = (*BUILD, ".clang-tidy", "scripts/lint.sh", f"src/{part}", *headers)
        yield Part(f"tidy-{part}", "clang-tidy", paths, steps)


def fuzz(root):
    targets = [path.name.removesuffix("_fuzz.cpp") for path in sorted((root / "tests/fuzz").glob("*_fuzz.cpp"))]
    seconds = int(os.environ.get("VLMTRAIN_FUZZ_SECONDS", FUZZ_SECONDS))
    jobs = os.cpu_count() or 1
    build = "cmake --preset fuzz && cmake --build build/fuzz --target fuzz_targets"
    steps = [Step("build", build, needed=True)]
    for first in range(0, len(targets), jobs):
        chunk = targets[first : first + jobs]
        steps.append(Step(" ".join(chunk), shlex.join(["scripts/fuzz.sh", "--seconds", str(seconds), "--jobs", str(jobs), *chunk])))
    limits = f"VLMTRAIN_FUZZ_SECONDS={seconds} is below {FUZZ_SECONDS}" if seconds < FUZZ_SECONDS else ""
    about = f"fuzz targets, {FUZZ_SECONDS} s each"
    return Part("fuzz", about, (*CODE, "scripts/fuzz.sh", "tests/fuzz"), tuple(steps), limits)


RELEASE = Step("build", "cmake --preset release && cmake --build --preset release", needed=True)


def isas():
    steps = [Step(name, f"scripts/test_isas.sh {name}") for name in ("avx512", "avx2", "plain")]
    about = "tests that compute, under three instruction sets"
    return Part("isas", about, (*CODE, "tests", "configs", "scripts/test_isas.sh"), (RELEASE, *steps))


def real_weights():
    # A test that is skipped, because a Python package is missing, has not passed.
    test = Step("test", "ctest --preset nightly --no-tests=error --tests-regex real_weights | tee /dev/stderr | { ! grep Skipped; }")
    about = "real weights against transformers and bitsandbytes"
    return Part("real-weights", about, (*CODE, "tests/real_weights", "scripts/real_weights", "scripts/gpu_queue/harness"), (RELEASE, test))


def gpu_queue(root):
    listed = subprocess.run([root / "scripts/gpu_queue.sh", "names"], capture_output=True, text=True, check=True)
    # kernel_speed is a benchmark, which the release build leaves out.
    build = Step("build", f"{RELEASE.command} && cmake --build --preset release --target kernel_speed", needed=True)
    dry = [Step(name, f"scripts/gpu_queue.sh --dry {name}") for name in listed.stdout.split()]
    paths = (*CODE, "bench", "configs", "scripts/gpu_queue", "scripts/gpu_queue.sh")
    return Part("gpu-queue-dry", "every entry of the GPU queue on a virtual GPU or the CPU", paths, (build, *dry))


def mutants():
    environment = {"PYTHONPATH": "scripts"}
    python = "build/mutants-venv/bin/python"
    venv = f"test -x {python} || (python3 -m venv build/mutants-venv && build/mutants-venv/bin/pip install clang==14.0)"
    first = (Step("venv", venv, needed=True), Step("make", f"{python} -m mutants make", environment, needed=True))
    for part in ("engine", "planner", "train"):
        run = Step("run", f"{python} -m mutants run --programs {part}_tests", environment, needed=True)
        report = Step("report", f"{python} -m mutants report --part {part} --least {LEAST_MUTANTS_CAUGHT}", environment)
        about = f"mutants, of which the tests catch at least {LEAST_MUTANTS_CAUGHT} %"
        yield Part(f"mutants-{part}", about, (*CODE, f"tests/{part}", "scripts/mutants"), (*first, run, report))


def all_parts(root):
    names = (root / "parts.txt").read_text().split()
    return [
        *debug(root, names), *asan(root, names), *tidy(root, names), fuzz(root), isas(), real_weights(), gpu_queue(root), *mutants(),
    ]
