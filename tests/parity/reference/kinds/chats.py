"""chats.json: what transformers makes of conversations with a checkpoint's own chat template.

For cases of families/, each in a copy of its checkpoint's folder with a template in the manner of published ones put where
published checkpoints have them. `ids` are those of processor.apply_chat_template(tokenize=True). `label_ids` are those of the
tokens that begin in an answer, in white space that the template writes between its generation prompt and the answer, or in what
it writes up to the token that ends the turn; `appended` is what vlmtrain puts after the last answer where the template writes
no such token, and takes the white space there away for.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path

import PIL.Image
from transformers import AutoProcessor

from library.cases import read_json, write_json

NAMES = ["chats"]

LLAVA_HF = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{# Images come first. #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}"
    "{% endfor %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ content['text'] + ' ' }}{% endgeneration %}"
    "{% else %}{{ content['text'] + ' ' }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
LLAMA_HEADERS = (
    "{{- bos_token }}{% if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'][0]['text'] | trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = 'Be helpful.' %}{%- endif %}"
    "{{- '### system\n' + system + '</s>' }}{%- for message in messages %}{{- '### ' + message['role'] + '\n' }}"
    "{%- for part in message['content'] %}{%- if part['type'] == 'image' %}{{- '<image>' }}"
    "{%- else %}{{- part['text'] | trim }}{%- endif %}{%- endfor %}{{- '</s>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '### assistant\n' }}{%- endif %}"
)
MISTRAL_STRINGS = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
QWEN_VISION = (
    "{% set pictures = namespace(value=0) %}{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}"
    "{% set pictures.value = pictures.value + 1 %}{% if add_vision_id %}Picture {{ pictures.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_REASONING = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}"
    "{%- if message.role == 'assistant' and not loop.last %}{{- part.text.split('</think>')[-1].lstrip('\n') }}"
    "{%- else %}{{- part.text }}{%- endif %}{%- endif %}{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CHATML_IMAGE = QWEN_REASONING.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
SMOL_JOINED = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}{% if message['content'][0]['type'] == 'image' %}"
    "{{ ':' }}{% else %}{{ ': ' }}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
SMOL_OTHER = (
    "{%- for message in messages -%}<|im_start|>{{ message.role | title }} says:{{ ' ' }}"
    "{%- for line in message.content -%}{{ '<image>' if line.type == 'image' else line.text | trim }}{%- endfor -%}"
    "<end_of_utterance>{{ '\n' }}{%- endfor -%}{%- if add_generation_prompt -%}<|im_start|>Assistant says:{%- endif -%}"
)
# case, name, template, how messages are written, file that holds it
CHATS = [
    ("mixed_batch", "as published", SMOL_JOINED, "blocks", "chat_template.jinja"),
    ("mixed_batch", "other words", SMOL_OTHER, "blocks", "chat_template.json"),
    ("smolvlm_type_sharded", "as published", SMOL_JOINED, "blocks", "chat_template.jinja"),
    ("llava_clip_llama", "llava-hf", LLAVA_HF, "blocks", "chat_template.jinja"),
    ("llava_clip_llama", "headers", LLAMA_HEADERS, "blocks", "chat_template.json"),
    ("llava_clip_mistral", "strings", MISTRAL_STRINGS, "strings", "chat_template.jinja"),
    ("llava_siglip_qwen2", "chatml", CHATML_IMAGE, "blocks", "chat_template.jinja"),
    ("qwen2_vl_images", "as published", QWEN_VISION, "blocks", "chat_template.json"),
    ("qwen2_5_vl_mixed", "as published", QWEN_VISION, "blocks", "chat_template.jinja"),
    ("qwen2_5_vl_mixed", "reasoning", QWEN_REASONING, "blocks", "chat_template.jinja"),
]
TURNS = [
    ["<image>\nWhat is shown in this picture?", "A cat on the table, near 2 balls."],
    ["<image>\nWhich side?", "42 mm, on the left.", "Is there a fracture? Say: No.", "No."],
    ["<image>\n<image>\nCompare both.", " The first one is larger.", "Größe, 東京?", "Ça va… 🙂"],
    ["No picture: why?", "Because."],
]


def find_blocks(turn):
    blocks, opening = [], True
    for piece in re.split("(<image>)", turn):
        if piece == "<image>":
            blocks.append({"type": "image"})
            continue
        if opening and blocks:
            piece = piece.removeprefix("\n")
        if piece:
            blocks.append({"type": "text", "text": piece})
            opening = False
    return blocks


def make_messages(turns, system, form):
    roles = ["user", "assistant"]
    pairs = [("system", system)] if system else []
    pairs += [(roles[index % 2], turn) for index, turn in enumerate(turns)]
    return [{"role": role, "content": turn if form == "strings" else find_blocks(turn)} for role, turn in pairs]


def with_files(messages, files):
    files = iter(files)
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else []:
            if block["type"] == "image":
                block["path"] = str(next(files))
    return messages


def special_tokens(tokenizer):
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def end_of_turn(tokenizer, rest):
    """Returns the first token of the text after an answer, with the text before it."""
    stripped = rest.lstrip()
    for token in special_tokens(tokenizer):
        if stripped.startswith(token):
            return rest[: len(rest) - len(stripped)] + token
    return None


def answer_spans(processor, text, answers, prompt_ends_with):
    spans, place = [], 0
    for answer in answers:
        variant = next(variant for variant in (answer, answer.strip()) if variant in text[place:])
        begin = text.index(variant, place)
        # The question of the second round holds the words of its answer.
        while text[:begin].endswith("Say: "):
            begin = text.index(variant, begin + 1)
        end = begin + len(variant)
        while not text[:begin].endswith(prompt_ends_with):
            begin -= 1
        ending = end_of_turn(processor.tokenizer, text[end:])
        place = end + len(ending or "")
        spans.append((begin, place))
    return spans


def label_ids(tokenizer, text, spans, add_special_tokens):
    own = tokenizer(text, return_offsets_mapping=True, add_special_tokens=add_special_tokens)
    pairs = zip(own["input_ids"], own["offset_mapping"])
    return [token for token, (begin, end) in pairs if end > begin and any(a <= begin < b for a, b in spans)]


def make_chat(source, folder, template, form, file, turns, system):
    case = source.name
    shutil.copytree(source / "checkpoint", folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / file).write_text(json.dumps({"chat_template": template}) if file.endswith("json") else template)
    if "bos_token" in template:
        write_json(folder / "tokenizer_config.json", read_json(folder / "tokenizer_config.json") | {"bos_token": "<s>"})
    processor = AutoProcessor.from_pretrained(folder)
    tokenizer = processor.tokenizer
    source_images = sorted((source / "images").glob("*.*"))
    count = sum(turn.count("<image>") for turn in turns)
    files = [source_images[index % len(source_images)] for index in range(count)]
    messages = make_messages(turns, system, form)
    text = processor.apply_chat_template(messages)
    answers = turns[1::2]
    first_prompt = processor.apply_chat_template(messages[: 2 if system else 1], add_generation_prompt=True)
    spans = answer_spans(processor, text, answers, first_prompt[-4:])
    appended = None
    last = spans[-1][1]
    if end_of_turn(tokenizer, text[last:]) is None and not any(
        text[:last].endswith(token) for token in special_tokens(tokenizer)
    ):
        appended = tokenizer.eos_token
        text = text[:last] + appended
        spans[-1] = (spans[-1][0], len(text))
    starts = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    images = [PIL.Image.open(path).convert("RGB") for path in files]
    more = {"add_special_tokens": False} if starts else {}
    ids = processor(text=[text], images=[images] if images and case.startswith(("mixed", "smol")) else images or None, **more)["input_ids"]
    ids = ids[0].tolist() if hasattr(ids[0], "tolist") else list(ids[0])
    if appended is None and form == "blocks":
        whole = processor.apply_chat_template(with_files(make_messages(turns, system, form), files), tokenize=True, return_dict=True)
        own = whole["input_ids"]
        own = own[0] if hasattr(own[0], "__len__") else own
        assert list(own) == ids, f"{case}: apply_chat_template makes other ids of its own text"
    return {
        "case": case,
        "template": template,
        "file": file,
        "system": system,
        "turns": turns,
        "images": [path.name for path in files],
        "ids": ids,
        "label_ids": label_ids(tokenizer, text, spans, not starts),
        "appended": appended,
    }


def make(_, data):
    chats = []
    for case, name, template, form, file in CHATS:
        for turns in TURNS:
            for system in (None, "Answer in one line."):
                if system and "alternate" in template:
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    chat = make_chat(data / case, Path(scratch) / "checkpoint", template, form, file, turns, system)
                chats.append({"name": f"{case}, {name}"} | chat)
    write_json(data / "chats.json", chats, indent=1)
