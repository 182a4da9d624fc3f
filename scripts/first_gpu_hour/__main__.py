"""Checks vlmtrain on the GPU of this machine: values against the CPU, plans against what is measured, speed beside transformers.

    first_gpu_hour.sh list | all | self-test | PART …

Each check is a line of OUT/results.jsonl as soon as it is known, and OUT/report.md is made anew with it. What is done is not done
again (--again does it). --device virtual:NAME goes through all of it where there is no GPU and judges nothing; --device cpu compares
the CPU with itself. Exit codes: 0 nothing failed; 1 a check failed; 2 wrong usage; 3 nothing failed, but time ran out before all was
done: call it again.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import correctness
import gtests
import inputs
import own_kernels
import program
import ranks
import results
import speed
import truth
from bench import Bench, RunFailed

PARTS = [*correctness.PARTS, *gtests.PARTS, *truth.PARTS, *own_kernels.PARTS, *speed.PARTS, *ranks.PARTS]


def read_arguments():
    parser = argparse.ArgumentParser(prog="first_gpu_hour.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", metavar="PART", help="list, all, self-test, or parts by name")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, virtual:NAME or cpu")
    parser.add_argument("--out", type=Path, help="folder of results.jsonl and report.md; default: first-gpu-hour/DEVICE")
    parser.add_argument("--work", type=Path, help="folder of checkpoints and runs, up to 10 GB; default: OUT/work")
    parser.add_argument("--vlmtrain", type=Path, default=inputs.ROOT / "build" / "release" / "vlmtrain")
    parser.add_argument("--gpu-tests", type=Path, help="default: gpu_tests beside vlmtrain, or in tests/ there")
    parser.add_argument("--libtorch", type=Path, help="the folder torch of LibTorch's wheel, for a portable program")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose names have this text")
    parser.add_argument("--again", action="store_true", help="do what is done already once more")
    parser.add_argument("--minutes", type=float, help="budget of each part, or with all of everything, instead of its own")
    return parser.parse_args(), parser


def chosen_parts(arguments, parser):
    if arguments.parts == ["all"]:
        return PARTS
    known = {part.name: part for part in PARTS}
    for name in arguments.parts:
        if name not in known:
            parser.error(f"{name}: no such part; there are {', '.join(known)}, and list, all and self-test, which stand alone")
    return [known[name] for name in arguments.parts]


def refuse(reason):
    """Wrong usage: no program, no LibTorch, no folder."""
    print(f"first_gpu_hour: {reason}", file=sys.stderr)
    sys.exit(2)


def use_libtorch(folder):
    """A portable program finds LibTorch by LD_LIBRARY_PATH, behind its own rpath."""
    if folder is None and (named := os.environ.get("VLMTRAIN_LIBTORCH")):
        folder = Path(named)
    if folder is None:
        return
    folder = folder / "torch" if (folder / "torch" / "lib").exists() else folder
    if not (folder / "lib" / "libtorch_cpu.so").exists():
        refuse(f"{folder} is not LibTorch: there is no lib/libtorch_cpu.so")
    others = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = str(folder / "lib") + (":" + others if others else "")


def find_libtorch_of_python():
    found = subprocess.run([sys.executable, "-c", "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"],
                           capture_output=True, text=True).stdout.strip()
    return Path(found).parent if found else None


def start_program(arguments):
    """The program's version. Tries Python's own LibTorch where it does not start without."""
    if not arguments.vlmtrain.exists():
        refuse(f"{arguments.vlmtrain} is not there; build it (cmake --build --preset release) or name it with --vlmtrain")
    use_libtorch(arguments.libtorch)
    core = core_of(arguments.vlmtrain)
    if not os.access(core, os.X_OK) or core.is_dir():
        refuse(f"{core} is no program")
    ended = subprocess.run([core, "--version"], capture_output=True, text=True)
    if ended.returncode != 0 and (folder := find_libtorch_of_python()):
        use_libtorch(folder)
        ended = subprocess.run([core, "--version"], capture_output=True, text=True)
    if ended.returncode != 0:
        refuse(f"{arguments.vlmtrain} does not start: {ended.stderr.strip()}; --libtorch names the folder of LibTorch")
    return ended.stdout.strip()


def core_of(vlmtrain):
    """What needs LibTorch: `vlmtrain` itself answers --version without."""
    core = vlmtrain.resolve().with_name("vlmtrain-core")
    return core if core.exists() else vlmtrain


def find_gpu_tests(arguments):
    beside = arguments.vlmtrain.resolve().parent
    for path in [arguments.gpu_tests] if arguments.gpu_tests else [beside / "gpu_tests", beside / "tests" / "gpu_tests"]:
        if path.exists():
            return path.absolute()
    return None


def identity_of(arguments, version):
    """What results are of: another program or device begins anew. A copy of a program is the same one."""
    digest = hashlib.sha256(core_of(arguments.vlmtrain).read_bytes()).hexdigest()[:12]
    return {"device": arguments.device, "program": f"{version}, {digest}"}


def describe_card():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used,compute_cap", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "nvidia-smi says nothing"


def outcome_of(check, bench):
    try:
        return check.do(bench)
    except program.OutOfTime:
        return results.Outcome(results.CUT, "the part's time ran out in the middle of it; call it again")
    except RunFailed as error:
        return results.failed(str(error), "the run itself: do it by hand with the command of docs/first-gpu-hour.md")
    except Exception as error:  # a check that breaks must not take the others with it
        return results.failed(f"{type(error).__name__}: {error}", "scripts/first_gpu_hour, or a file that the program did not write")


def say(text):
    print(text, flush=True)


def do_part(part, bench, record, arguments, seconds):
    """Whether all of it is done."""
    bench.clock = program.Clock(seconds)
    done, why_not = True, part.why_not(bench)
    say(f"== {part.name}: {part.about} ({'skipped' if why_not else f'at most {seconds / 60:.1f} minutes'})")
    for check in part.checks(bench):
        if arguments.only not in check.name:
            continue
        if not arguments.again and record.is_done(part.name, check.name):
            say(f"   done before: {check.name}")
            continue
        began = time.monotonic()
        if why_not:
            outcome = results.skipped(why_not)
        elif bench.clock.left() < min(check.seconds, seconds / 4):
            outcome = results.Outcome(results.CUT, "not begun: too little of the part's time was left; call it again")
        else:
            outcome = outcome_of(check, bench)
        done = done and outcome.state != results.CUT
        record.add(part.name, check.name, outcome, time.monotonic() - began)
        say(f"   {outcome.state:>11}  {check.name} ({time.monotonic() - began:.1f} s): {outcome.text}")
    return done


def check_card(arguments, bench, parser):
    """On a machine without a GPU, or for a virtual one that there is not, it says so once, instead of failing every check."""
    bench.clock = program.Clock(120)
    if arguments.device.startswith("virtual:"):
        ended = bench.run(["plan", "--gpu", arguments.device.partition(":")[2], "--model", "smolvlm-256m"])
        if ended.code == 2:
            parser.error(f"--device {arguments.device}: {ended.reason()}")
    if arguments.device.startswith("cuda"):
        config = bench.work / "card.yaml"
        checkpoint = bench.checkpoint("smolvlm-tiny")
        data = bench.small_data()
        bench.write_config(config, {"data.eval": data / "train.json", "training.precision": "fp32"})
        ended = bench.run(["eval", "--config", config, "--checkpoint", checkpoint, "--device", arguments.device, "--max-new-tokens", 1, "--json"])
        if ended.code != 0:
            parser.error(f"--device {arguments.device}: {ended.reason()}")


def self_test(arguments, bench, record):
    """Plants each fault of each check of values on the CPU, one at a time: the check has to fail, and without it to pass."""
    for part in PARTS:
        for check in part.checks(bench):
            if not check.faults or arguments.only not in check.name:
                continue
            for what, fault in [("nothing planted", {}), *check.faults.items()]:
                name = f"{check.name}, {what}"
                if not arguments.again and record.is_done("self-test", name):
                    continue
                bench.fault, bench.clock = fault, program.Clock(300)
                began = time.monotonic()
                found = outcome_of(check, bench)
                wanted = results.FAILED if fault else results.PASSED
                if found.state == wanted:
                    outcome = results.passed(f"{found.state}: {found.text}")
                elif found.state == results.SKIPPED:
                    outcome = found
                else:
                    outcome = results.failed(f"{found.state}, not {wanted}: {found.text}", "the bounds in scripts/first_gpu_hour/comparison.py")
                record.add("self-test", name, outcome, time.monotonic() - began)
                say(f"   {outcome.state:>11}  {name}: {outcome.text}")


def finish(record, done, parser):
    if not record.lines:
        parser.error("no check was chosen: --only chooses checks by their names, which OUT/results.jsonl of a run has")
    say(f"\n{record.summary()}; {record.folder / 'report.md'}")
    for line in record.to_mend():
        say(f"to mend: {line['part']}: {line['check']}: {line['text']}\n         look at {line['mend']}")
    if not done:
        say("Not all is done: call it again, what is done is not done again.")
    return 1 if record.to_mend() else 0 if done else 3


def main():
    arguments, parser = read_arguments()
    if arguments.parts == ["list"]:
        for part in PARTS:
            say(f"{part.name:<14} {part.minutes:>4.0f} minutes at most  {part.about}")
        return 0
    testing_itself = arguments.parts == ["self-test"]
    parts = PARTS if testing_itself else chosen_parts(arguments, parser)
    if testing_itself:
        arguments.device = "cpu"
    if arguments.device not in ("cpu", "cuda") and not arguments.device.startswith(("cuda:", "virtual:")):
        parser.error(f"--device {arguments.device}: write cuda, cuda:N, virtual:NAME or cpu")
    arguments.vlmtrain = arguments.vlmtrain.absolute()
    version = start_program(arguments)
    out = (arguments.out or Path("first-gpu-hour") / arguments.device.replace(":", "-")).absolute()
    identity = identity_of(arguments, version)
    bench = Bench(arguments.vlmtrain, arguments.device, (arguments.work or out / "work").absolute(), find_gpu_tests(arguments),
                  identity["program"])
    try:
        bench.work.mkdir(parents=True, exist_ok=True)
        record = results.Results(out, identity)
    except OSError as error:
        refuse(error)
    say(f"{version} on {arguments.device}" + (f": {describe_card()}" if arguments.device.startswith("cuda") else ""))
    check_card(arguments, bench, parser)
    if testing_itself:
        self_test(arguments, bench, record)
        return finish(record, True, parser)

    minutes_of_all = sum(part.minutes for part in parts if not part.why_not(bench))
    whole = program.Clock(60 * (arguments.minutes if arguments.parts == ["all"] and arguments.minutes else minutes_of_all))
    done = True
    for part in parts:
        own = 60 * (arguments.minutes if arguments.minutes and arguments.parts != ["all"] else part.minutes)
        done = do_part(part, bench, record, arguments, min(own, whole.left())) and done
    return finish(record, done, parser)


if __name__ == "__main__":
    sys.exit(main())
