#!/usr/bin/env python3
"""Imports the metrics of a run into wandb, mlflow or trackio.

    import_metrics.py RUN_DIR --to wandb|mlflow|trackio [--project NAME] [--name NAME] [--offline]

RUN_DIR is the folder of a run (output.dir). Reads its metrics.jsonl and config.yaml and writes a new run of the service,
with one value per number and step: loss, tasks/NAME/loss, eval/loss, eval/anls, eval/tasks/NAME/exact_match, and so on.
Lists are left out. --offline: wandb writes to ./wandb, for `wandb sync`; mlflow to ./mlflow.db and ./mlruns, unless
MLFLOW_TRACKING_URI is set; trackio always writes to this machine. Exit codes: 0 done, 2 usage, 4 bad data, 5 failed.
"""

import argparse
import collections.abc
import json
import math
import os
import pathlib
import re
import sys

# Fields of metrics.jsonl that earlier versions wrote under another name.
NEW_NAMES = {"foreseen_splits": "forecast_splits", "empty_drawn": "empty_predictions"}
# Groups of an evaluation that get no folder of their own: eval/anls, eval/dice.
INLINED = ("metrics", "masks")
MLFLOW_BATCH = 1000  # most metrics of a request of MLflow


def flatten(fields: dict, prefix: str = "") -> dict[str, float]:
    """Returns the finite numbers of a JSON object by their path, under the fields' current names."""
    values = {}
    for name, value in fields.items():
        current = NEW_NAMES.get(name, name)
        if current != name and current in fields:
            continue
        if isinstance(value, dict):
            inlined = name in INLINED and prefix.startswith("eval/") and not prefix.endswith(("tasks/", "structures/"))
            values |= flatten(value, prefix if inlined else prefix + ("eval" if current == "evaluation" else current) + "/")
        elif isinstance(value, (bool, int, float)) and math.isfinite(value):
            values[prefix + current] = float(value)
    return values


def read_steps(path: pathlib.Path) -> list[tuple[int, dict[str, float]]]:
    """Returns the steps of metrics.jsonl with their values; raises ValueError for a line that is no step.

    The last line may be incomplete, as in a run that is under way.
    """
    lines = path.read_text().splitlines()
    steps = []
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            step = fields.pop("step")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}:{number}: is not a step; restore the file") from error
        steps.append((int(step), flatten(fields)))
    return steps


def read_config(run_dir: pathlib.Path) -> str:
    path = run_dir / "config.yaml"
    return path.read_text() if path.exists() else ""


Steps = collections.abc.Sequence[tuple[int, dict[str, float]]]


def to_wandb(steps: Steps, config: str, arguments: argparse.Namespace) -> None:
    import wandb

    mode = "offline" if arguments.offline else None
    with wandb.init(project=arguments.project, name=arguments.name, config={"config.yaml": config}, mode=mode) as run:
        for step, values in steps:
            run.log(values, step=step)


def to_mlflow(steps: Steps, config: str, arguments: argparse.Namespace) -> None:
    import mlflow
    from mlflow.entities import Metric

    if arguments.offline and "MLFLOW_TRACKING_URI" not in os.environ:
        mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment(arguments.project)
    with mlflow.start_run(run_name=arguments.name) as run:
        client = mlflow.MlflowClient()
        mlflow.log_text(config, "config.yaml")
        # The files have no time by step, so all values have the time of the import.
        time = run.info.start_time
        metrics = [Metric(mlflow_name(name), value, time, step) for step, values in steps for name, value in values.items()]
        for first in range(0, len(metrics), MLFLOW_BATCH):
            client.log_batch(run.info.run_id, metrics=metrics[first:first + MLFLOW_BATCH])


def mlflow_name(name: str) -> str:
    """Returns the name with _ for each character that MLflow does not accept."""
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)


def to_trackio(steps: Steps, config: str, arguments: argparse.Namespace) -> None:
    import trackio

    trackio.init(project=arguments.project, name=arguments.name, config={"config.yaml": config})
    for step, values in steps:
        trackio.log(values, step=step)
    trackio.finish()


SERVICES = {"wandb": to_wandb, "mlflow": to_mlflow, "trackio": to_trackio}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=pathlib.Path, metavar="RUN_DIR")
    parser.add_argument("--to", choices=SERVICES, required=True, help="the service")
    parser.add_argument("--project", default="vlmtrain", help="name of the project or experiment")
    parser.add_argument("--name", help="name of the run; default: the name of RUN_DIR")
    parser.add_argument("--offline", action="store_true", help="use no network")
    arguments = parser.parse_args()
    arguments.name = arguments.name or arguments.run_dir.resolve().name
    if not (arguments.run_dir / "metrics.jsonl").exists():
        parser.error(f"{arguments.run_dir}: has no metrics.jsonl; name the folder of a run")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    try:
        steps = read_steps(arguments.run_dir / "metrics.jsonl")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 4
    try:
        SERVICES[arguments.to](steps, read_config(arguments.run_dir), arguments)
    except ImportError as error:
        print(f"{error}; install it with pip install {arguments.to}", file=sys.stderr)
        return 5
    print(f"{arguments.run_dir}: {len(steps)} steps imported into {arguments.to}, project {arguments.project}, run {arguments.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
