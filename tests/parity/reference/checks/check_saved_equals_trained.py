"""Is what vlmtrain saves what it trained? For each tiny preset that transformers has a class for:

    python check_saved_equals_trained.py VLMTRAIN [--only NAME …] [--work FOLDER]

starts from a random checkpoint, changes everything that has to reach the saved folder, and trains until the model repeats its
answers. The changes are: a chat template with another end-of-turn token, a limit of pixels, an output layer that differs from the
embedding although config.json ties the two, and a leftover quantization_config. check_saved_limits.py does the same for videos.
It trains once in full and once with LoRA plus whole embeddings, and merges the adapter. Then it loads the saved folders with
transformers and PEFT alone and compares, for each record:

- token ids and number of image tokens: those of `vlmtrain generate RUN --show-prompt`;
- the loss over the label tokens, from the raw image files: that of `vlmtrain eval` with the run's configuration;
- the greedy answer of `generate()` with the saved generation_config.json: it ends where vlmtrain's answer ends. PEFT does not read
  the one in an adapter's folder, so it is loaded by name there.

Writes a table; exit code 0: all of it holds; 1: not, with the reasons on stderr. Needs ./requirements.txt.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of kinds/

from check_hand_over import Vlmtrain, presets
from kinds.chats import find_blocks, with_files

TOLERANCE = 1e-5
MAX_PIXELS = 12544
LONGEST_ANSWER = 24
# Special tokens that no template of these presets writes after an answer, in the order they are tried.
OTHER_END_TOKENS = ("<|vision_pad|>", "<|endoftext|>", "<|quad_start|>", "<unused0>", "<row_1_col_1>", "<pad>")
RECORDS = [("image", "wide.png", "<image>\nWhat?", "A ramp."), ("text", None, "Say three.", "one two three")]


def write_images(folder):
    Image.linear_gradient("L").resize((320, 240)).convert("RGB").save(folder / "wide.png")


def write_data(folder):
    records = []
    for name, image, question, answer in RECORDS:
        record = {"id": name, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
        records.append(record | ({"image": image} if image else {}))
    (folder / "data.json").write_text(json.dumps(records))
    return records


def change_json(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content, indent=2))


def untie(base):
    """Gives a tied checkpoint an output layer of its own. Returns whether it was tied."""
    file = base / "model.safetensors"
    tensors = load_file(file)
    config = json.loads((base / "config.json").read_text())
    if not any(part.get("tie_word_embeddings") for part in (config, config.get("text_config") or {})):
        return False
    embedding = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    noise = torch.randn(tensors[embedding].shape, generator=torch.Generator().manual_seed(3))
    save_file(tensors | {"lm_head.weight": tensors[embedding] + 0.02 * noise}, file, metadata={"format": "pt"})
    return True


class Family:
    """One preset in a folder of its own."""

    def __init__(self, program, folder, preset):
        self.folder, self.preset, self.problems = folder, preset, []
        self.program = Vlmtrain(program, folder)
        self.program.run("init", "--preset", preset, "--out", "base")
        write_images(folder)
        base = folder / "base"
        self.records = write_data(folder)
        self.was_tied = untie(base)
        change_json(base / "config.json", lambda config: config.update(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}))
        self.end = self.write_template(base)
        self.write_config()

    def write_template(self, base):
        """A template that ends turns with another token, where the tokenizer has one. Returns that token or None."""
        shown = json.loads(self.program.run("generate", "--checkpoint", "base", "--data", "data.json", "--record", 2, "--show-prompt", "--json"))
        template = transformers.AutoProcessor.from_pretrained(base).chat_template
        known = {token["content"] for token in json.loads((base / "tokenizer.json").read_text())["added_tokens"]}
        end = next((token for token in OTHER_END_TOKENS if token in known and token != shown["end_of_turn"] and token not in template), None)
        if shown["end_of_turn"] not in template or end is None:
            end = None
        else:
            template = template.replace(shown["end_of_turn"], end)
        (self.folder / "other.jinja").write_text("{#- of this check -#}" + template)
        return end

    def write_config(self):
        (self.folder / "train.yaml").write_text(
            "model: {path: base}\n"
            f"data: {{train: data.json, eval: data.json, chat_template: other.jinja, num_workers: 1, image_max_pixels: {MAX_PIXELS}}}\n"
            f"training: {{global_batch_size: {len(self.records)}, micro_batch_size: 1, max_steps: 60, learning_rate: 3.0e-3, precision: fp32, eval_answers: false}}\n"
            "output: {dir: run, save_steps: 60, sample_predictions: 0, report: false}\n"
        )

    def expect(self, holds, problem):
        if not holds:
            self.problems.append(f"{self.preset}: {problem}")
        return holds

    def train(self, name, *overrides):
        self.program.run("--config", "train.yaml", "--device", "cpu", f"output.dir={name}", *overrides)
        return max((self.folder / name / "checkpoints").glob("step-*"))

    def messages(self, record, until):
        """The first `until` turns of a record as transformers takes them."""
        turns = [turn["value"] for turn in record["conversations"]][:until]
        messages = [{"role": ("user", "assistant")[index % 2], "content": find_blocks(turn)} for index, turn in enumerate(turns)]
        return with_files(messages, [self.folder / record["image"]] if "image" in record else [])

    def check_record(self, what, index, checkpoint, processor, model):
        record = self.records[index]
        shown = json.loads(
            self.program.run("generate", "--checkpoint", checkpoint, "--data", "data.json", "--record", index + 1, "--show-prompt", "--json")
        )
        inputs = processor.apply_chat_template(self.messages(record, 2), tokenize=True, return_dict=True, return_tensors="pt")
        own, theirs = shown["token_ids"], inputs["input_ids"][0].tolist()
        # A template may write white space after the last end of turn, which is not trained.
        same = theirs[: len(own)] == own and not processor.tokenizer.decode(theirs[len(own) :]).strip()
        if not self.expect(same, f"{what}: {record['id']}: {len(own)} tokens here, {len(theirs)} in transformers"):
            return None
        logits = model(**inputs).logits[0].double()
        is_label = torch.tensor(shown["is_label"], dtype=torch.bool)
        label_logits = logits[: len(own) - 1][is_label[1:]]
        self.check_answer(what, index, checkpoint, processor, model)
        return torch.nn.functional.cross_entropy(label_logits, torch.tensor(own)[is_label], reduction="sum"), int(is_label.sum())

    def check_answer(self, what, index, checkpoint, processor, model):
        record = self.records[index]
        ours = json.loads(
            self.program.run("generate", "--checkpoint", checkpoint, "--data", "data.json", "--record", index + 1, "--max-new-tokens", LONGEST_ANSWER, "--device", "cpu", "--json")
        )
        prompt = processor.apply_chat_template(self.messages(record, 1), add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt")
        settings = transformers.GenerationConfig.from_pretrained(checkpoint)
        settings.update(max_new_tokens=LONGEST_ANSWER, do_sample=False)
        new = model.generate(**prompt, generation_config=settings)[0][prompt["input_ids"].shape[1] :]
        answer = processor.tokenizer.decode(new, skip_special_tokens=True).strip()
        where = f"{what}: {record['id']}"
        self.expect(len(new) < LONGEST_ANSWER, f"{where}: transformers does not stop: {answer!r}")
        self.expect(re.sub(r"\s+", " ", answer) == re.sub(r"\s+", " ", ours["text"].strip()), f"{where}: {answer!r} in transformers, {ours['text']!r} here")

    @torch.no_grad()
    def check(self, what, checkpoint, model):
        processor = transformers.AutoProcessor.from_pretrained(checkpoint)
        results = [self.check_record(what, index, checkpoint, processor, model) for index in range(len(self.records))]
        if None in results:
            return "–"
        loss = sum(total.item() for total, _ in results) / sum(labels for _, labels in results)
        ours = self.program.loss(checkpoint)
        apart = abs(ours - loss) / max(1, loss)
        self.expect(apart <= TOLERANCE, f"{what}: the loss is {loss:.6f} in transformers, {ours:.6f} here")
        return f"{apart:.0e}"

    def load(self, folder):
        model, info = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        wrong = {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}
        self.expect(not wrong, f"{folder.name}: {wrong}")
        return model.eval()

    def plain_base(self):
        """The base as transformers can load it: without the leftover quantization_config."""
        shutil.copytree(self.folder / "base", self.folder / "plain")
        change_json(self.folder / "plain/config.json", lambda config: config.pop("quantization_config"))
        return self.load(self.folder / "plain")

    def row(self):
        full = self.train("full")
        row = [self.preset, "yes" if self.was_tied else "no", self.end or "–", self.check("full", full, self.load(full))]
        adapter = self.train("lora", "lora.rank=4", "training.learning_rate=1e-2", "lora.modules_to_save=[embed_tokens]")
        adapted = peft.PeftModel.from_pretrained(self.plain_base(), adapter).eval()
        row.append(self.check("adapter", adapter, adapted))
        self.program.run("merge", "--adapter", adapter, "--out", "merged")
        row.append(self.check("merged", self.folder / "merged", self.load(self.folder / "merged")))
        return row


COLUMNS = ["preset", "tied in config.json", "end of turn", "full: loss apart", "adapter", "merged"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--work", type=Path, help="folder for the checkpoints; by default they are removed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, peft {peft.__version__}\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    problems = []
    work = arguments.work or Path(tempfile.mkdtemp())
    for preset in arguments.only or presets():
        folder = work / preset
        folder.mkdir(parents=True)
        family = Family(arguments.program.resolve(), folder, preset)
        try:
            print("| " + " | ".join(family.row()) + " |", flush=True)
        except (SystemExit, Exception) as error:  # one family must not hide the others
            family.problems.append(f"{preset}: {type(error).__name__}: {error}")
            print(f"| {preset} | failed |", flush=True)
        problems += family.problems
    if not arguments.work:
        shutil.rmtree(work)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
