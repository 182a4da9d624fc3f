"""Does whoever loads a checkpoint with transformers ask it in the words that vlmtrain trained it in?

    python check_chat_round_trip.py VLMTRAIN CHECKPOINT_DIR DATA_JSON [--records 20]

Compares, for the first records, the token ids that training takes (`generate --show-prompt --json`) with those of
AutoProcessor's apply_chat_template of the same turns and images. If the template writes no end of turn, vlmtrain puts one
after the last answer, in the place of the white space there; nothing else may differ. Exit code 0: equal; 1: not, with what differs.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from transformers import AutoProcessor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of kinds/

from kinds.chats import find_blocks, with_files


def make_turns(record):
    turns = record.get("conversations") or record["messages"]
    return [turn.get("value", turn.get("content")) for turn in turns]


def find_images(record, root):
    names = record.get("image") or record.get("images") or []
    return [root / name for name in ([names] if isinstance(names, str) else names)]


def ids_of_transformers(processor, record, root):
    images = find_images(record, root)
    messages = [
        {"role": "user" if index % 2 == 0 else "assistant", "content": find_blocks(turn)}
        for index, turn in enumerate(make_turns(record))
    ]
    if images and not any(block["type"] == "image" for message in messages for block in message["content"]):
        messages[0]["content"] = [{"type": "image"} for _ in images] + messages[0]["content"]
    ids = processor.apply_chat_template(with_files(messages, images), tokenize=True, return_dict=True)["input_ids"]
    return list(ids[0]) if hasattr(ids[0], "__len__") else list(ids)


def shown(program, checkpoint, data, place):
    command = [program, "generate", "--checkpoint", checkpoint, "--data", data, "--record", str(place), "--show-prompt", "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def difference(processor, ours, theirs):
    if ours["token_ids"] == theirs:
        return None
    end = processor.tokenizer.convert_tokens_to_ids(ours["end_of_turn"])
    own = ours["token_ids"]
    if own[-1] == end and theirs[: len(own) - 1] == own[:-1]:
        rest = processor.tokenizer.decode(theirs[len(own) - 1 :])
        return None if not rest.strip() else f"after the last answer transformers has {rest!r}"
    return f"vlmtrain: {processor.tokenizer.decode(own)!r}\ntransformers: {processor.tokenizer.decode(theirs)!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--records", type=int, default=20)
    arguments = parser.parse_args()
    processor = AutoProcessor.from_pretrained(arguments.checkpoint)
    records = json.loads(arguments.data.read_text())[: arguments.records]
    problems = []
    for place, record in enumerate(records, start=1):
        ours = shown(arguments.program, arguments.checkpoint, arguments.data, place)
        problem = difference(processor, ours, ids_of_transformers(processor, record, arguments.data.parent))
        if problem:
            problems.append(f"record {place}: {problem}")
    print(f"{len(records) - len(problems)} of {len(records)} equal; chat template {ours['chat_template']}")
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
