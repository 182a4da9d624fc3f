#!/usr/bin/env python3
"""Writes tests/text/data: small tokenizers of each kind, and the output of Hugging Face's libraries for texts and chats.

    make_tokenizer_goldens.py [OUT_DIR]

Needs tokenizers==0.23.3 and jinja2 (any 3.x). The tokenizers are trained here, on the texts below, so that their files
stay small; their components are those of the checkpoints in their names. Training is deterministic.
"""
import json
import pathlib
import sys
import unicodedata

import jinja2.sandbox
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

PINNED = "0.23.3"

QWEN2_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")

CORPUS = [
    "What is shown in the image? The image shows a cat that sits on the window sill and looks at the garden.",
    "What colour is the cat? It is black and white, and its eyes are green. There are two chairs and one table.",
    "How many people are there in the picture? There are three people: two women and a man in a red coat.",
    "The chest radiograph shows no acute findings. The heart is of normal size, and the lungs are clear.",
    "def area(width, height):\n    return width * height\n\nfor i in range(10):\n    print(area(i, 2 * i))\n",
    "I'm sure that they're right, isn't it? We've seen it, she'll say, and he'd agree. Don't worry: it's fine.",
    "In 2023 the price rose by 12.5 %, from 1,024 to 1,152; in 1999 it was 100.",
    "Die Katze sitzt auf der Straße und schläft. Größe, Länge, Höhe: drei schöne Wörter.",
    "Le café est fermé à midi; l'été, où êtes-vous? Ça va très bien, merci.",
    "El niño pequeño mañana comerá una manzana. ¿Qué color tiene?",
    "Кошка сидит на окне и смотрит в сад. Сколько людей на картинке?",
    "日本語のテキスト、中文文本。图片里有什么？猫はどこにいますか。",
    "한국어 문장입니다. 고양이가 창가에 앉아 있습니다.",
    "هذه صورة قطة سوداء", "תמונה של חתול", "हिन्दी में एक वाक्य", "ภาษาไทย", "Ελληνικά κείμενα",
] * 4

STRINGS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "\t\t x", " \n ", "\r\n", "a", " a", "a ", "  a  ", "a  b   c    d",
    "Hello world", "Hello, world!", "What is shown in the image?", "The image shows a cat.", " A cat.",
    "I'm can't WE'LL they'Re IT'S 'tis 'S", "don\u2019t \u2018quote\u2019 \u201cx\u201d", "x'\u017f '\u017f",
    "  leading\n\n trailing  \n", "a \n b", "line one\nline two\r\nline three\n\n\n   end", "tabs\tand\t\ttabs",
    "a\u000bb\fc\u001cd\u001fe", "nbsp\u00a0\u2003\u3000\u2028\u2029\u0085x", "x\u00a0\u00a0y \u00a0 z", "0", "12", "123",
    "1234", "12345678", "3.14", "1,024.50 %", "2023-11-21 10:30", "a1b22c333d4444", "\u00bd \u00b2\u00b3 \u2167 \u32bf",
    "\u0663\u0664\u0665 \u0ed1\u0ed2 \u0967\u0968", "x\u00b2+y\u00b2", "def f(x):\n    return x ** 2  # c\n",
    "https://a.b/c?d=1&e=%20#f", "a_b __c__ d-e -- f", "!!! ... ??? ;;; :::", "()[]{}<>|\\/^~`", ".....!!!\n\n\n   x",
    "$5 \u20ac5 \u00a35", "A\u0301 e\u0301 combining \u0300", "\u00e9\u00e8\u00ea", "e\u0301\u0323", "e\u0323\u0301 o\u0302\u0301",
    "\u212b \u2126 \u1e9b\u0323", "\u1100\u1161\u11a8 \uac00\u11a8", "\u0958 \u09c7\u09be", "\u0344 \u0f73 \u0345",
    "\ufb01 \ufb00 \u00df \u1e9e \u0130 \u0131", "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8\u3001\u4e2d\u6587\u3002",
    "\u304c \u304b\u3099 \uff76\uff9e", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u05e9\u05dc\u05d5\u05dd", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22", "\u12a0\u121b\u122d\u129b",
    "\U0001F600", "\U0001F600\U0001F600 x", "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F3F3\ufe0f\u200d\U0001F308",
    "\U0001F44D\U0001F3FD \u2764\ufe0f", "\U0001D518\U0001D52B\U0001D526 \U0001D7D9", "zero\u200bwidth \u200d \ufeffbom",
    "\u0000 nul", "\uffff \ue000 \U0010ffff", "\u2581 x\u2581y \u2581", "<0x41> <0x", "\u0120x \u010a", "stra\u00dfe Stra\u00dfe",
    "<image>", "<image>\nWhat is shown?", "<image><image><image>", "x<image>y", "x <image> y", "  <image>  ",
    "a<image>\n<image>\nb", "<end_of_utterance>", "A cat.<end_of_utterance>\nAssistant:", "<|im_start|>User: hi",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start", "<|im_start|", "<|im_start||>", "<|im_<|im_end|>", "<s>", "</s>",
    "<s>hi</s> there", "[INST] hi [/INST] yes </s>[INST] more [/INST]", "<unk> x", "<strip>", "a  <strip> \n b", "<strip><strip>",
    " <strip>x", "x<strip> ", "<word>", "a<word>b", "a <word> b", "<word>b", ".<word>.", "\u00e9<word>", "<norm\u00e9>",
    "a <norme\u0301> b", "<norm x> <norm  x>", "x<norm x>", "<norm x>y", "x<image><norm x>", "<row_1_col_1><row_1_col_2>\n\n<global-img>", "<tok><tok-long>",
    "a" * 60, "ab" * 40, " " * 70 + "x", "the " * 30, "\n" * 20, "9" * 25,
]

CHAT_TEMPLATES = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% for block in message['content'] %}"
              "{% if block['type'] == 'image' %}{{ '<image>' }}{% else %}{{ block['text'] }}{% endif %}{% endfor %}"
              "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    # transformers, convert_internvl_weights_to_hf.py, with a mark that stands for its own
    "internvl": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n'}}{% for content in message['content'] %}"
                "{% if content['type'] == 'image' %}{{ '<image>\\n' }}{% elif content['type'] == 'text' %}{{ content['text'] }}"
                "{% endif %}{% endfor %}{{'<|im_end|>\\n'}}{% endfor %}{% if add_generation_prompt %}"
                "{{'<|im_start|>assistant\\n' }}{% endif %}",
    # llava-hf/llava-1.5-7b-hf, chat_template.json
    "llava_1_5": "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
                 "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}"
                 "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}"
                 "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    # haotian-liu/LLaVA, conversation.py: conv_vicuna_v1 as SeparatorStyle.TWO writes it
    "llava_v1": "{% if messages[0]['role'] != 'system' %}{{ \"A chat between a curious user and an artificial intelligence "
                "assistant. The assistant gives helpful, detailed, and polite answers to the user's questions. \" }}{% endif %}"
                "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
                "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}"
                "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}{% endfor %}"
                "{{ '</s>' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    # google/gemma-3-4b-it, chat_template.json, without the check that roles take turns; its mark for an image is <start_of_image>
    "gemma3": "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}"
              "{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- set loop_messages = messages[1:] -%}"
              "{%- else -%}{%- set first_user_prefix = \"\" -%}{%- set loop_messages = messages -%}{%- endif -%}"
              "{%- for message in loop_messages -%}{%- if (message['role'] == 'assistant') -%}{%- set role = \"model\" -%}"
              "{%- else -%}{%- set role = message['role'] -%}{%- endif -%}"
              "{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else \"\") }}"
              "{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<image>' }}"
              "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{{ '<end_of_turn>\n' }}"
              "{%- endfor -%}{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}",
    # google/gemma-4-31B-it as trl 1.16 has it, for conversations without tools and reasoning; its mark for an image is <|image|>
    "gemma4": "{{ bos_token }}{%- for message in messages -%}"
              "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
              "{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<image>' }}"
              "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{{ '<turn|>\n' }}"
              "{%- endfor -%}{%- if add_generation_prompt -%}{{'<|turn>model\n'}}{%- endif -%}",
    # LLaVA-VL/LLaVA-NeXT, conversation.py: conv_qwen as SeparatorStyle.CHATML writes it
    "llava_qwen": "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
                  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
                  "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
                  "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}{% endfor %}"
                  "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # microsoft/LLaVA-Med, conversation.py: conv_mistral_instruct as SeparatorStyle.LLAMA_2 writes it
    "mistral_instruct": "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' }}"
                        "{% if loop.index0 == 1 and messages[0]['role'] == 'system' %}"
                        "{{ '<<SYS>>\\n' + messages[0]['content'][0]['text'] + '\\n<</SYS>>\\n\\n' }}{% endif %}"
                        "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}"
                        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}"
                        "{% endfor %}{{ ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
                        "{{ ' ' + message['content'][0]['text'] + ' </s>' }}{% endif %}{% endfor %}",
    # huggingface/nanoVLM v0.1, data/datasets.py and data/collators.py; more rounds and a system text follow in the same way
    "question_answer": "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'Question: ' }}"
                       "{% elif message['role'] == 'assistant' %}{{ 'Answer:' }}{% endif %}{% for block in message['content'] %}"
                       "{% if block['type'] == 'image' %}{{ '<image>' }}{% else %}{{ block['text'] }}{% endif %}{% endfor %}"
                       "{{ '<|endoftext|>' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
                       "{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}",
    # Qwen/Qwen2.5-VL-3B-Instruct, chat_template.json, without its video branch
    "qwen2_vl": "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a "
                "helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n{% for content in "
                "message['content'] %}{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
                "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # HuggingFaceTB/SmolVLM-Instruct, chat_template.jinja, without its video branch
    "smolvlm": "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == "
               "'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}"
               "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
               "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
}

# Turns as in LLaVA's data, and the equivalent content blocks of transformers.
IMAGE = {"type": "image"}


def text(value):
    return {"type": "text", "text": value}


CHATS = [
    [("user", "<image>\nWhat is shown?", [IMAGE, text("What is shown?")]), ("assistant", "A cat.", [text("A cat.")]),
     ("user", "What colour?", [text("What colour?")]), ("assistant", "Black.", [text("Black.")])],
    [("system", "Be brief.", [text("Be brief.")]), ("user", "Hello.", [text("Hello.")]), ("assistant", "Hi!", [text("Hi!")])],
    [("user", "<image>\n<image>\nWhich is older?", [IMAGE, IMAGE, text("Which is older?")]),
     ("assistant", "The first,\nby far.", [text("The first,\nby far.")])],
    [("user", "<image>What is shown?", [IMAGE, text("What is shown?")])],
    [("user", "Größe von 猫?\n", [text("Größe von 猫?\n")]), ("assistant", "🐈 très grande", [text("🐈 très grande")]),
     ("user", "<image>\nAnd this?", [IMAGE, text("And this?")])],
]
IN_PLACE_CHATS = [
    [("user", "<image>", [IMAGE]), ("assistant", "", [text("")])],
    [("user", "Compare <image> and <image>.", [text("Compare "), IMAGE, text(" and "), IMAGE, text(".")]),
     ("assistant", "Same.", [text("Same.")])],
]
IMAGES_FIRST_CHATS = [
    [("user", "<image>", [IMAGE, text("")]), ("assistant", "", [text("")])],
    [("user", "What is shown?\n<image>", [IMAGE, text("What is shown?")]), ("assistant", "A dog.", [text("A dog.")])],
]
IMAGES_FIRST = ("llava_1_5", "llava_qwen", "llava_v1", "mistral_instruct")


def extra_tokens(normalized: bool) -> list[AddedToken]:
    """Returns added tokens with every flag. <norm…> match in normalized text, like GPT-2's <|endoftext|>."""
    return [
        AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False, special=True),
        AddedToken("<word>", single_word=True, normalized=False, special=False),
        AddedToken("<norm\u00e9>", normalized=normalized, special=False),
        AddedToken("<norm x>", normalized=normalized, special=False),
        AddedToken("<tok>", normalized=False, special=False),
        AddedToken("<tok-long>", normalized=False, special=False),
    ]


def specials(*contents: str) -> list[AddedToken]:
    return [AddedToken(content, normalized=False, special=True) for content in contents]


def byte_level(vocab_size: int, pre_tokenizer, normalizer=None, ignore_merges=False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def gpt2() -> Tokenizer:
    tokenizer = byte_level(480, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
    tokenizer.add_tokens(extra_tokens(normalized=True))
    return tokenizer


def smollm2() -> Tokenizer:
    tokenizer = byte_level(480, pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    tokenizer.add_special_tokens(specials(
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>",
        "<fake_token_around_image>", "<image>", "<end_of_utterance>"))
    return tokenizer


def qwen2() -> Tokenizer:
    tokenizer = byte_level(480, pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2_REGEX), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(specials("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>",
                                          "<|vision_end|>", "<|image_pad|>"))
    tokenizer.add_tokens(extra_tokens(normalized=True))
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = byte_level(480, pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3_REGEX), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), ignore_merges=True)
    tokenizer.add_special_tokens(specials("<|begin_of_text|>", "<|image|>"))
    # Words that no merges produce: only ignore_merges matches them.
    state = json.loads(tokenizer.to_str())
    for word in ("zebra", "Ġqueue", "ĠIT"):
        state["model"]["vocab"][word] = 490 + len(state["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(state))
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def sentencepiece_bpe(pre_tokenizer, normalizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    # Trained on words, like SentencePiece; the final tokenizer may apply BPE to whole texts.
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Split("\u2581", "merged_with_next")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    # Few scripts, so that other characters need the fallback. (limit_alphabet breaks ties at random.)
    corpus = [line for line in CORPUS if all(ord(character) < 0x500 for character in line)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=620, special_tokens=tokens, show_progress=False))
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    if pre_tokenizer is None:
        state["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(state))


def llama2() -> Tokenizer:
    tokenizer = sentencepiece_bpe(None, normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(specials("<image>"))
    tokenizer.add_tokens(extra_tokens(normalized=True))
    return tokenizer


def metaspace() -> Tokenizer:
    """Returns Llama-2's tokenizer as in newer conversions, without byte fallback for some characters, and with </s> at the end."""
    tokenizer = sentencepiece_bpe(pre_tokenizers.Metaspace(prepend_scheme="first"), None)
    state = json.loads(tokenizer.to_str())
    state["model"]["byte_fallback"] = False
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(specials("<image>"))
    return tokenizer


def character_starts(string: str) -> list[int]:
    """Returns the byte offset of each character, and of the end."""
    starts = [0]
    for character in string:
        starts.append(starts[-1] + len(character.encode()))
    return starts


def is_realigned(string: str) -> bool:
    """Returns whether NFC reorders or expands characters, which makes the offsets inside ambiguous."""
    marks = [unicodedata.combining(character) > 0 for character in string]
    return (any(one and other for one, other in zip(marks, marks[1:]))
            or any(len(unicodedata.normalize("NFC", character)) > 1 for character in string))


def golden(tokenizer: Tokenizer, string: str) -> dict:
    plain = tokenizer.encode(string, add_special_tokens=False)
    starts = character_starts(string)
    case = {
        "text": string,
        "ids": plain.ids,
        "decoded": tokenizer.decode(plain.ids, skip_special_tokens=False),
    }
    if not (isinstance(tokenizer.normalizer, normalizers.NFC) and is_realigned(string)):
        # Offsets of tokenizers are in characters, and begin where the token's first character does.
        case["starts"] = [starts[begin] for begin, _ in plain.offsets]
    without_special = tokenizer.decode(plain.ids, skip_special_tokens=True)
    if without_special != case["decoded"]:
        case["decoded_without_special"] = without_special
    with_special = tokenizer.encode(string, add_special_tokens=True).ids
    if with_special != plain.ids:
        case["ids_with_special"] = with_special
    return case


def write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def write_tokenizers(out: pathlib.Path) -> None:
    for make in (gpt2, smollm2, qwen2, llama3, llama2, metaspace):
        tokenizer = make()
        state = json.loads(tokenizer.to_str())
        if make is llama2:  # their files have merges as "a b"
            state["model"]["merges"] = [" ".join(merge) for merge in state["model"]["merges"]]
        write_json(out / f"{make.__name__}.tokenizer.json", state)
        cases = [golden(tokenizer, string) for string in STRINGS]
        lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
        (out / f"{make.__name__}.golden.json").write_text(f"[\n{lines}\n]\n")


def write_chats(out: pathlib.Path) -> None:
    # The settings with which transformers compiles chat templates.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    cases = []
    for name, source in CHAT_TEMPLATES.items():
        template = environment.from_string(source)
        for chat in CHATS + (IMAGES_FIRST_CHATS if name in IMAGES_FIRST else IN_PLACE_CHATS):
            messages = [{"role": role, "content": blocks} for role, _, blocks in chat]
            for add_generation_prompt in (False, True):
                cases.append({
                    "template": name,
                    "turns": [{"role": role, "text": value} for role, value, _ in chat],
                    "add_generation_prompt": add_generation_prompt,
                    "rendered": template.render(messages=messages, add_generation_prompt=add_generation_prompt),
                })
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    (out / "chats.golden.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    if tokenizers.__version__ != PINNED:
        sys.exit(f"tokenizers {tokenizers.__version__} is installed; the goldens need {PINNED}")
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "text" / "data"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizers(folder)
    write_chats(folder)
