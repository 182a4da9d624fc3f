"""answers.json: what transformers answers greedily, with its own cache, in float32 on the CPU.

A list of {"case", "adapter" (a folder of lora/, or null), "id", "question", "prompt_ids", "new_ids", "smallest_lead"}. Each
record's first turn is answered with 100 tokens, whether an end token is among them or not. The checkpoints and adapters are those
that are there. nanoVLM's reference has no cache; there each token is that of a pass over the whole. (The answers of
nanovlm_images_first have 64 tokens, made before there were 100 and on a machine that draws its weights so.)

Two implementations in float32 may differ where two tokens are nearly as probable. So a question whose answer has such a place is
replaced by one of OTHER_QUESTIONS, and "smallest_lead" says how close a choice was (difference of logits).
"""

import families
from families import text
from kinds.cases import SMALLEST_LEAD
from library.cases import read_json, write_lines

NEW_TOKENS = 100
ADAPTERS = {"mixed_batch": ["all_linear"], "full_heads_untied_tiles": ["text_tower"]}
NAMES = [name for name, (module, _) in families.CASES.items() if module is not text]
OTHER_QUESTIONS = ["Describe it.", "What is it?", "Is there a ball?", "Name two things.", "Why?"]


def questions(record):
    """The record's first turn, then the others with the same images."""
    first = record["conversations"][0]["value"]
    marks = "<image>\n" * first.count("<image>") + "<video>\n" * first.count("<video>")
    return [first] + [marks + text for text in OTHER_QUESTIONS]


def answer_record(family, model, record):
    for question in questions(record):
        prompt = family.encode(record | {"conversations": [{"from": "human", "value": question}]}, turns=1)
        new_ids, lead = family.generate(model, prompt, NEW_TOKENS, ends=False)
        if lead > SMALLEST_LEAD:
            break
        print(f"  {record['id']}: {question!r} has a lead of only {lead:.1e}")
    else:
        raise SystemExit(f"{record['id']}: no question without a near tie; add to OTHER_QUESTIONS")
    assert len(new_ids) == NEW_TOKENS
    return {
        "id": record["id"], "question": question, "prompt_ids": family.stored_ids(prompt.input_ids).tolist(),
        "new_ids": new_ids.tolist(), "smallest_lead": lead,
    }


def answer_case(family, adapter=None):
    model = family.load()
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).eval()
    return [answer_record(family, model, record) for record in family.case.samples]


def make(name, data):
    """Replaces the answers of one case in the file."""
    family = families.find(name, data)
    with family.patched():
        family.open()
        new = {
            (name, adapter): answer_case(family, adapter and data / "lora" / adapter / "adapter")
            for adapter in [None, *ADAPTERS.get(name, [])]
        }
    stored = {}
    for item in read_json(data / "answers.json"):
        stored.setdefault((item["case"], item["adapter"]), []).append(item)
    for (case, adapter), items in new.items():
        stored[case, adapter] = [{"case": case, "adapter": adapter} | item for item in items]
    write_lines(data / "answers.json", [item for items in stored.values() for item in items])
