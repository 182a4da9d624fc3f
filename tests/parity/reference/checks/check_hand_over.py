"""Does what vlmtrain saves do elsewhere what it did in vlmtrain? For each family of transformers that has a preset …-tiny:

    python check_hand_over.py VLMTRAIN [--only NAME …] [--vllm VLLM/model_executor/models] [--work FOLDER]

makes a random checkpoint (or takes that of a case of ../../data, which --only can name too), trains it whole and with LoRA for a few steps, merges the adapter, and checks that

- transformers loads base, trained and merged checkpoint, and PEFT the adapter, with every key in its place;
- each has the loss there that `vlmtrain eval` says of it, to 1e-5, with token ids that are those of training;
- training has changed the logits, by a good part of their size: what is loaded and does nothing is the common failure;
- the merged checkpoint is base and adapter in PEFT, to 1e-5;
- vLLM has a place for each tensor and each of the language model's adapters (vllm_names.py), and gguf a name (gguf_names.py).

Writes a table of it; exit code 0: all of it holds; 1: not, with the reasons on stderr. Needs ./requirements.txt and the package gguf.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import peft
import torch
import transformers
from PIL import Image
from safetensors import safe_open

import check_adapter_round_trip
import check_chat_round_trip
import check_round_trip
import gguf_names
import vllm_names

PRESETS = Path(__file__).resolve().parents[4] / "configs/models"
CASES = Path(__file__).resolve().parents[2] / "data"
TOLERANCE = 1e-5
LEAST_CHANGE = 1e-2
RECORDS = [
    ("wide", ["wide.png"], "<image>\nWhat is shown?", "A ramp of grey, from dark to bright."),
    ("words", [], "Is there a fracture?", "No, there is none."),
    ("two", ["tall.png", "wide.png"], "<image>\n<image>\nCompare the two.", "The first is taller, the second one wider."),
    ("tall", ["tall.png"], "<image>\nHow many?", "3"),
]
STEPS = {"full": ["training.learning_rate=1e-3"], "lora": ["lora.rank=4", "training.learning_rate=1e-2"]}


def presets():
    """Returns the tiny presets whose model_type transformers supports."""
    known = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    names = []
    for file in sorted(PRESETS.glob("*-tiny/config.json")):
        if json.loads(file.read_text()).get("model_type") in known:
            names.append(file.parent.name)
    return names


def write_data(folder):
    for name, size in (("wide.png", (90, 40)), ("tall.png", (50, 84))):
        Image.linear_gradient("L").resize(size).convert("RGB").save(folder / name)
    records = [
        {"id": name, "image": images, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
        for name, images, question, answer in RECORDS
    ]
    for record in records:
        if not record["image"]:
            del record["image"]
    (folder / "data.json").write_text(json.dumps(records))
    (folder / "train.yaml").write_text(
        "model: {path: base}\ndata: {train: data.json, eval: data.json}\n"
        "training: {global_batch_size: 4, max_steps: 6, precision: fp32, eval_answers: false}\n"
        "output: {dir: run, sample_predictions: 0}\n"
    )


class Vlmtrain:
    """The program, in a folder."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *words):
        done = subprocess.run([str(word) for word in (self.program, *words)], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def train(self, name):
        self.run("--config", "train.yaml", "--device", "cpu", f"output.dir={name}", *STEPS[name])
        return max((self.folder / name / "checkpoints").glob("step-*"))

    def loss(self, checkpoint):
        return json.loads(self.run("eval", "--config", "train.yaml", "--checkpoint", checkpoint, "--device", "cpu", "--json"))["loss"]

    def prompt(self, place):
        return json.loads(
            self.run("generate", "--checkpoint", "base", "--data", "data.json", "--record", place, "--show-prompt", "--json")
        )


@dataclass
class Record:
    """Returns the inputs that transformers' processor makes of a record, and its label tokens."""

    inputs: dict
    is_label: torch.Tensor


def with_end_of_turn(inputs, ids):
    """Returns the inputs with the ids of training. Their last id ends an answer that the template leaves open, in place of white space."""
    length, changed = inputs["input_ids"].shape[1], {}
    for name, value in inputs.items():
        if value.dim() == 2 and value.shape[1] == length:
            value = torch.nn.functional.pad(value[:, : len(ids) - 1], (0, 1), value=1 if name == "attention_mask" else 0)
        changed[name] = value
    return changed | {"input_ids": torch.tensor([ids])}


def make_records(program, folder, problems):
    processor = transformers.AutoProcessor.from_pretrained(folder / "base")
    records = []
    for place, (name, images, _, _) in enumerate(RECORDS, start=1):
        shown = program.prompt(place)
        source_images = [Image.open(folder / image) for image in images]
        begins = shown["text"].startswith(processor.tokenizer.bos_token or "\0")  # as apply_chat_template looks
        inputs = dict(processor(text=[shown["text"]], images=[source_images] if source_images else None, return_tensors="pt", add_special_tokens=not begins))
        if problem := check_chat_round_trip.difference(processor, shown, inputs["input_ids"][0].tolist()):
            problems.append(f"record {name}: {problem}")
        inputs = with_end_of_turn(inputs, shown["token_ids"])
        records.append(Record(inputs, torch.tensor(shown["is_label"], dtype=torch.bool)))
    return records


@torch.no_grad()
def label_logits(model, records):
    """float64 [labels, vocabulary] and the labels, of all records."""
    logits, labels = [], []
    for record in records:
        actual = model(**record.inputs, use_cache=False).logits[0]
        logits.append(actual[:-1][record.is_label[1:]].double())
        labels.append(record.inputs["input_ids"][0][record.is_label])
    return torch.cat(logits), torch.cat(labels)


def relative(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


def collect_names(folder):
    names = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names += tensors.keys()
    return names


class Check:
    """Of one family."""

    def __init__(self, program, folder, name):
        self.folder, self.problems = folder, []
        self.program = Vlmtrain(program, folder)
        if (CASES / name / "checkpoint").exists():
            shutil.copytree(CASES / name / "checkpoint", folder / "base")
        else:
            self.program.run("init", "--preset", name, "--out", "base")
        self.config = json.loads((folder / "base/config.json").read_text())
        write_data(folder)
        self.records = make_records(self.program, folder, self.problems)
        self.base = None

    def expect(self, holds, problem):
        if not holds:
            self.problems.append(problem)

    def logits_and_loss(self, name, model, checkpoint):
        """Compares the loss with vlmtrain's. Returns the logits and how far apart the losses are."""
        logits, labels = label_logits(model, self.records)
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        apart = abs(self.program.loss(checkpoint) / loss - 1)
        self.expect(apart <= TOLERANCE, f"{name}: transformers' loss is {loss}, vlmtrain's {apart:.1e} from it")
        return logits, apart

    def checkpoint(self, name, folder):
        """Returns the logits of a full checkpoint and its entries in the table."""
        model, _, problems = check_round_trip.load(folder)
        self.problems += [f"{name}: {problem}" for problem in problems]
        self.problems += [f"{name}: {problem}" for problem in vllm_names.problems_of_checkpoint(self.config, collect_names(folder))]
        if gguf_names.knows(self.config):
            self.problems += [f"{name}: {problem}" for problem in gguf_names.problems_of_checkpoint(self.config, collect_names(folder))]
        return self.logits_and_loss(name, model.float(), folder)

    def change(self, name, logits):
        change = relative(logits, self.base)
        self.expect(change >= LEAST_CHANGE, f"{name}: the logits are {change:.1e} from the base's, so training did nothing")
        return change

    def row(self):
        self.base, base_apart = self.checkpoint("base", self.folder / "base")
        full, full_apart = self.checkpoint("full", self.program.train("full"))

        adapter = self.program.train("lora")
        adapted, problems = check_adapter_round_trip.load_with_peft(adapter, self.folder / "base")
        self.problems += [f"adapter: {problem}" for problem in problems]
        with_adapter, adapter_apart = self.logits_and_loss("adapter", adapted, adapter)
        adapter_config = json.loads((adapter / "adapter_config.json").read_text())
        self.problems += vllm_names.problems_of_adapter(self.config, adapter_config, collect_names(adapter))
        self.program.run("merge", "--adapter", adapter, "--out", "merged")
        merged, merged_apart = self.checkpoint("merged", self.folder / "merged")
        from_adapter = relative(merged, with_adapter)
        self.expect(from_adapter <= TOLERANCE, f"merged: {from_adapter:.1e} from base and adapter in PEFT")

        return [
            self.config["model_type"], f"{len(collect_names(self.folder / 'merged'))}", f"{base_apart:.0e}",
            f"{full_apart:.0e}", f"{self.change('full', full):.2f}", f"{adapter_apart:.0e}", f"{self.change('adapter', with_adapter):.2f}",
            f"{merged_apart:.0e}", f"{from_adapter:.0e}", " + ".join(map(str, vllm_names.use_of_adapter(self.config, collect_names(adapter)))),
            "all" if gguf_names.knows(self.config) else "not known",
        ]


COLUMNS = [
    "`model_type`", "tensors", "base: loss", "full: loss", "change", "adapter: loss", "change", "merged: loss", "from the adapter",
    "vLLM's use of the adapter", "names in gguf",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--vllm", type=Path, help="vLLM sources to compare vllm_names.py with")
    parser.add_argument("--work", type=Path, help="folder for the checkpoints; by default they are removed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, peft {peft.__version__}, vLLM {vllm_names.VERSION}, gguf {gguf_names.VERSION}\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    problems = vllm_names.differences_from_source(arguments.vllm) if arguments.vllm else []
    work = arguments.work or Path(tempfile.mkdtemp())
    for name in arguments.only or presets():
        folder = work / name
        folder.mkdir(parents=True)
        check = Check(arguments.program.resolve(), folder, name)
        print("| " + " | ".join(check.row()) + " |", flush=True)
        problems += [f"{name}: {problem}" for problem in check.problems]
    if not arguments.work:
        shutil.rmtree(work)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
