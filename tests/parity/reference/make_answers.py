"""Makes ../data/answers.json: what transformers answers greedily, with its own cache, in float32 on the CPU: python make_answers.py [--only CASE]

nanoVLM's reference (make_nanovlm_reference.py) has no cache; there each token is that of a pass over the whole. (The answers of
nanovlm_images_first have 64 tokens, made before there were 100 and on a machine that draws its weights so.)

A list of {"case", "adapter" (a folder of ../data/lora, or null), "id", "question", "prompt_ids", "new_ids", "smallest_lead"}. The
checkpoints, adapters, conversations and images are those that are there; run this after make_reference.py, make_llava_reference.py
and make_lora_reference.py. Each record's first turn is answered with 100 tokens, whether an end token is among them or not.

Two implementations in float32 may differ where two tokens are nearly as probable. So a question whose answer has such a place is
replaced by one of OTHER_QUESTIONS, and "smallest_lead" says how close a choice was (difference of logits).
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoProcessor

from library import cases
from library import gemma3_checkpoints
from library import gemma3_format
from library import internvl_checkpoints
from library import internvl_format
from library import llava
from library import llava_checkpoints
from library import llava_format
import make_gemma3_reference
import make_internvl_reference
import make_llava_reference
import make_nanovlm_reference
import make_qwen_reference
import make_smolvlm_video_reference
from library import nanovlm_checkpoints
from library import nanovlm_format
from library import qwen_checkpoints
from library import qwen_format
from library import training
from make_reference import SMALLEST_LEAD

NEW_TOKENS = 100
ADAPTERS = ["all_linear", "text_tower"]
OTHER_QUESTIONS = ["Describe it.", "What is it?", "Is there a ball?", "Name two things.", "Why?"]


def answer(model, inputs):
    """The new ids, and the smallest lead of a chosen token over the next best one."""
    model.generation_config.eos_token_id = None
    output = model.generate(
        **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, output_logits=True, return_dict_in_generate=True
    )
    best = torch.stack(output.logits)[:, 0].topk(2).values
    return output.sequences[0, inputs["input_ids"].shape[1] :].tolist(), (best[:, 0] - best[:, 1]).min().item()


def questions(record):
    """The record's first turn, then the others with the same images."""
    first = record["conversations"][0]["value"]
    marks = "<image>\n" * first.count("<image>") + "<video>\n" * first.count("<video>")
    return [first] + [marks + text for text in OTHER_QUESTIONS]


def answer_without_cache(model, inputs):
    """The same of a model that has no generate()."""
    ids, lead = inputs["input_ids"], float("inf")
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            best = model(**inputs | {"input_ids": ids}).logits[0, -1].topk(2)
            lead = min(lead, (best.values[0] - best.values[1]).item())
            ids = torch.cat([ids, best.indices[None, :1]], 1)
    return ids[0, inputs["input_ids"].shape[1] :].tolist(), lead


def answer_record(model, record, encode, answer=answer):
    for question in questions(record):
        request = record | {"conversations": [{"from": "human", "value": question}]}
        prompt_ids, inputs = encode(request)
        new_ids, lead = answer(model, inputs)
        if lead > SMALLEST_LEAD:
            break
        print(f"  {record['id']}: {question!r} has a lead of only {lead:.1e}")
    else:
        raise SystemExit(f"{record['id']}: no question without a near tie; add to OTHER_QUESTIONS")
    assert len(new_ids) == NEW_TOKENS
    return {
        "id": record["id"], "question": question, "prompt_ids": prompt_ids, "new_ids": new_ids, "smallest_lead": lead,
    }


def make_records(folder):
    return json.loads((folder / "conversations.json").read_text())


def idefics3_answers(folder, adapter=None):
    processor = AutoProcessor.from_pretrained(folder / "checkpoint")
    model = training.load(folder / "checkpoint", torch.float32)
    if adapter:
        model = PeftModel.from_pretrained(model, adapter).eval()

    def encode(record):
        inputs = llava.encode_prompt(processor, record, folder / "images")
        return inputs["input_ids"][0].tolist(), inputs

    return [answer_record(model, record, encode) for record in make_records(folder)]


def llava_answers(case, folder):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        llava_checkpoints.write(case.shape, scratch / "checkpoint", scratch / "loadable")
        weights = [place / "checkpoint" / "model.safetensors" for place in (folder, scratch)]
        assert weights[0].read_bytes() == weights[1].read_bytes(), f"{folder} has other weights than {case.name}"
        model = training.load(scratch / "loadable", torch.float32)
        image_id = json.loads((scratch / "loadable" / "config.json").read_text())["image_token_index"]
    processor = llava_checkpoints.make_processor(case.shape, folder / "checkpoint")

    def encode(record):
        prompt = llava_format.encode(processor, case.shape, image_id, record, folder / "images", turns=1)
        ids = prompt.input_ids
        if case.shape.layout == "original":  # as make_llava_reference.py
            ids = ids.masked_fill(ids == image_id, 0)
        return ids.tolist(), training.forward_inputs(prompt, torch.float32)

    return [answer_record(model, record, encode) for record in make_records(folder)]


def qwen_answers(case, folder):
    model = training.load(folder / "checkpoint", torch.float32)
    processor = qwen_checkpoints.make_processor(case.shape, folder / "checkpoint")

    def encode(record):
        prompt = qwen_format.encode(processor, model, record, folder / "images", case.shape.vision, 1, case.shape.video_layout)
        return prompt.input_ids.tolist(), training.forward_inputs(prompt, torch.float32)

    return [answer_record(model, record, encode) for record in make_records(folder)]


def internvl_answers(case, folder):
    model = training.load(folder / "checkpoint", torch.float32)
    processor = internvl_checkpoints.make_processor(case.shape, folder / "checkpoint")

    def encode(record):
        prompt = internvl_format.encode(processor, case.shape, record, folder / "images", turns=1)
        return prompt.input_ids.tolist(), training.forward_inputs(prompt, torch.float32)

    return [answer_record(model, record, encode) for record in make_records(folder)]


def smolvlm_video_answers(case, folder):
    model = training.load(folder / "checkpoint", torch.float32)
    processor = AutoProcessor.from_pretrained(folder / "checkpoint")

    def encode(record):
        prompt = make_smolvlm_video_reference.encode(processor, case.shape, record, folder / "images", turns=1)
        return prompt.input_ids.tolist(), training.forward_inputs(prompt, torch.float32)

    return [answer_record(model, record, encode) for record in make_records(folder)]


def gemma3_answers(case, folder):
    model = training.load(folder / "checkpoint", torch.float32)
    processor = gemma3_checkpoints.make_processor(case.shape, folder / "checkpoint")

    def encode(record):
        prompt = gemma3_format.encode(processor, case.shape, record, folder / "images", turns=1)
        return prompt.input_ids.tolist(), training.forward_inputs(prompt, torch.float32)

    return [answer_record(model, record, encode) for record in make_records(folder)]


def nanovlm_answers(config, settings, folder):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch) / "checkpoint"
        model = nanovlm_checkpoints.write(config, *settings, scratch).eval()
        weights = [place / "model.safetensors" for place in (folder / "checkpoint", scratch)]
        assert weights[0].read_bytes() == weights[1].read_bytes(), f"{folder} has other weights"
    tokenizer = nanovlm_checkpoints.load_tokenizer(folder / "checkpoint", config)

    def encode(record):
        prompt = nanovlm_format.encode(tokenizer, config, record, folder / "images", turns=1)
        return prompt.input_ids.tolist(), training.forward_inputs(prompt, torch.float32)

    return [answer_record(model, record, encode, answer_without_cache) for record in make_records(folder)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parent.parent / "data")
    parser.add_argument("--only", help="answer only this case's questions, and keep the other answers of the file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    answers = []

    def add(case, adapter, make_answers):
        if arguments.only not in (None, case):
            stored = json.loads((arguments.data / "answers.json").read_text())
            answers.extend(item for item in stored if (item["case"], item["adapter"]) == (case, adapter))
            return
        result = make_answers()
        print(case, adapter, f"{min(item['smallest_lead'] for item in result):.1e}", flush=True)
        answers.extend({"case": case, "adapter": adapter} | item for item in result)

    for case in cases.CASES:
        add(case.name, None, lambda: idefics3_answers(arguments.data / case.name))
    for case in make_llava_reference.CASES:
        add(case.name, None, lambda: llava_answers(case, arguments.data / case.name))
    for case in make_qwen_reference.CASES:
        with qwen_format.video_layout(case.shape.video_layout):
            add(case.name, None, lambda: qwen_answers(case, arguments.data / case.name))
    for case in make_internvl_reference.CASES:
        add(case.name, None, lambda: internvl_answers(case, arguments.data / case.name))
    video_case = make_smolvlm_video_reference.CASE
    add(video_case.name, None, lambda: smolvlm_video_answers(video_case, arguments.data / video_case.name))
    for case in make_gemma3_reference.CASES:
        add(case.name, None, lambda: gemma3_answers(case, arguments.data / case.name))
    for case, config, settings in make_nanovlm_reference.CASES:
        add(case.name, None, lambda: nanovlm_answers(config, settings, arguments.data / case.name))
    for name in ADAPTERS:
        adapter = arguments.data / "lora" / name
        base = json.loads((adapter / "case.json").read_text())["base"]
        add(base, name, lambda: idefics3_answers(arguments.data / base, adapter / "adapter"))
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in answers)
    (arguments.data / "answers.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
