#!/usr/bin/env python3
"""Compares text, token ids and labels of 84 agent conversations with transformers, for every *.jinja of a folder.

    check_public_agents.py FOLDER --tokenizer FILE [--program build/release/tokenize_records] [--table FILE] [--show N]

The conversations are those of make_agent_goldens.py and two more, each in seven variations. transformers' apply_chat_template gives
text and ids. Labels of templates with {% generation %} are compared with transformers' assistant mask. Labels of the others are
compared with a reference: an answer with tool calls or reasoning is what its rendering adds to the generation prompt, through the
end of turn; another answer is found by rendering it with a mark in its place. An answer whose prompt is not a prefix of the whole
text has no reference and is counted. Every template gets FILE, a tokenizer.json, with the template's own special tokens added.

Exit code 1 if any result is different. check_public_templates.py compares the interpreter alone. Needs transformers >= 5.24; the
program is built with cmake --build --preset release --target tokenize_records. The templates are third-party work and not part of
this repository.
"""
import argparse
import collections
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import make_agent_goldens as agents

SPECIAL = re.compile(r"<[|｜][^<>{}'\"\s]+[|｜]>|\[/?[A-Z_]+\]|</?s>|<(?:start|end)_of_turn>|<\|[a-z_]+>|<[a-z_]+\|>")
PLAIN = re.compile(r"</?(?:think|tool_call|tool_response)>")
# Tokens that end an answer: those of eos_token_id in the checkpoints that the templates are from.
ENDS = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|return|>",
        "<|end_of_text|>", "<|user|>", "[e~[", "</s>", "<|call|>", "<|observation|>",
        "<|tool_response>"]
# Texts through the end of an answer, also of earlier ones.
ENDING = re.compile(r"\s*(?:<\|END_RESPONSE\|>)?(?:" + "|".join(map(re.escape, [*ENDS, "<|end|>"])) + ")")
BEGINS = ["<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<|startoftext|>", "<bos>", "<s>"]
MARK = "\ue000{}\ue001"
REFUSALS = {
    "other text before this answer than its generation prompt": "an answer does not follow the generation prompt",
    "so its label tokens are unknown": "an answer has no end of turn",
    "the chat template omits the call": "a call is omitted",
}


def conversations():
    """Returns 84 records by name: twelve conversations in seven variations."""
    base = copy.deepcopy(agents.CONVERSATIONS)
    base["thinking"] = dict(messages=[agents.user("How many?"), agents.answer("Three.", thinking="One, two, three.")])
    base["call of OpenAI"] = dict(messages=[
        agents.user("What does it say?"),
        agents.answer(None, reasoning="I read it.", tool_calls=[agents.call("read_text", lang="de")]),
        agents.tool("AUSGANG"), agents.answer("It says exit.")], tools=agents.TOOLS)
    number = 0
    for conversation in base.values():  # ids as Mistral's templates require them
        calls = []
        for message in conversation["messages"]:
            for call in message.get("tool_calls", []):
                number += 1
                call["id"] = f"call{number:05}"
                calls.append(call["id"])
            if message["role"] == "tool":
                message["tool_call_id"] = calls.pop(0)
    result = {}
    for name, conversation in base.items():
        for variation in ("as it is", "system text", "thinking, blocks", "no thinking", "kept thoughts",
                          "low effort", "loss of the last answer"):
            record = copy.deepcopy(conversation)
            messages = record["messages"]
            if variation == "system text":
                messages.insert(0, {"role": "system", "content": "Answer briefly, 1 < 2."})
            elif variation == "thinking, blocks":
                record["chat_template_kwargs"] = {"enable_thinking": True}
                for message in messages:
                    if message["role"] == "user":
                        message["content"] = [{"type": "text", "text": message["content"]}]
            elif variation == "no thinking":
                record["chat_template_kwargs"] = {"enable_thinking": False}
            elif variation == "kept thoughts":
                record["chat_template_kwargs"] = {"preserve_thinking": True}
            elif variation == "low effort":
                record["chat_template_kwargs"] = {"reasoning_effort": "low"}
            elif variation == "loss of the last answer":
                answers = [message for message in messages if message["role"] == "assistant"]
                for message in answers[:-1]:
                    message["loss"] = False
            result[f"{name}: {variation}"] = record
    assert len(result) == 84, len(result)
    return result


def make_checkpoint(folder, source, tokenizer_file):
    """Writes tokenizer and template as transformers saves them. Returns the tokenizer."""
    import transformers

    special = [token for token in dict.fromkeys(SPECIAL.findall(source))]
    names = {}
    end = next((token for token in ENDS if token in source), "</s>" if "eos_token" in source else "<|endoftext|>")
    begin = next((token for token in BEGINS if token in source), None)
    if begin or "bos_token" in source:
        names["bos_token"] = begin or "<s>"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file), eos_token=end, pad_token="<|endoftext|>", **names)
    tokenizer.add_special_tokens({"additional_special_tokens": special}, replace_extra_special_tokens=False)
    tokenizer.add_tokens([token for token in dict.fromkeys(PLAIN.findall(source))])
    tokenizer.chat_template = source
    tokenizer.save_pretrained(folder)
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ENDS if token in source] or [tokenizer.eos_token_id]
    (pathlib.Path(folder) / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return tokenizer


def as_strings(messages):
    """Returns the messages with the text of their blocks as content."""
    return [{**message, "content": "".join(block["text"] for block in message["content"])}
            if isinstance(message.get("content"), list) else message for message in messages]


class Reference:
    """A conversation as transformers renders and tokenizes it."""

    def __init__(self, tokenizer, record):
        self.tokenizer = tokenizer
        self.variables = record.get("chat_template_kwargs", {})
        self.tools = record.get("tools")
        self.learned = [message.get("loss", True) for message in record["messages"]]
        messages = [{key: value for key, value in message.items() if key != "loss"} for message in record["messages"]]
        self.messages = as_strings(messages)
        if self.messages != messages and self.takes_blocks(messages):
            self.messages = messages
        self.text = self.render(self.messages, False)

    def takes_blocks(self, messages):
        try:
            text = self.render(messages, False)
        except Exception:
            return False
        return "'type'" not in text and all(m["content"][0]["text"] in text for m in messages if isinstance(m.get("content"), list))

    def render(self, messages, prompt):
        return self.tokenizer.apply_chat_template(messages, tools=self.tools, add_generation_prompt=prompt, tokenize=False,
                                                  **self.variables)

    def ids(self):
        return self.tokenizer.apply_chat_template(self.messages, tools=self.tools, **self.variables)["input_ids"]

    def generation_mask(self):
        """Returns the assistant mask without answers that are not learned, or None if the blocks are not one per answer."""
        from transformers.utils.chat_template_utils import render_jinja_template

        encoding = self.tokenizer.apply_chat_template(
            self.messages, tools=self.tools, return_dict=True, return_assistant_tokens_mask=True, **self.variables)
        mask = list(encoding["assistant_masks"])
        answers = [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]
        if all(self.learned[i] for i in answers):
            return mask
        messages = [{key: value for key, value in message.items() if value is not None} for message in self.messages]
        _, spans = render_jinja_template(
            conversations=[messages], tools=self.tools, chat_template=self.tokenizer.chat_template,
            return_assistant_tokens_mask=True, **self.tokenizer.special_tokens_map, **self.variables)
        if len(spans[0]) != len(answers):
            return None
        for (begin, end), i in zip(spans[0], answers):
            for token, (start, _) in enumerate(encoding.encodings[0].offsets):
                if not self.learned[i] and begin <= start < end:
                    mask[token] = 0
        return mask

    def label_spans(self, text):
        """Returns the spans of the learned answers in `text`, or None if there is no reference."""
        spans = []
        for i, message in enumerate(self.messages):
            if message["role"] != "assistant":
                continue
            prompt = self.render(self.messages[:i], True)
            follows_prompt = text.startswith(prompt)
            reasoning = next((message[key] for key in ("reasoning_content", "reasoning", "thinking") if message.get(key)), "")
            has_fields = message.get("tool_calls") or reasoning
            span = None
            if has_fields and follows_prompt:
                added = self.render(self.messages[:i + 1], False)[len(prompt):].rstrip()
                end = max((added.rindex(token) + len(token) for token in ENDS if token in added), default=0)
                added = added[:end or None]
                if added and text[len(prompt):].startswith(added) and (message.get("tool_calls") or reasoning in added):
                    match = ENDING.match(text, len(prompt) + len(added))
                    span = (len(prompt), match.end() if match and not end else len(prompt) + len(added))
            if span is None and not message.get("tool_calls"):
                span = self.find_marked(text, i, len(prompt) if follows_prompt else None)
            if span is None:
                return None
            if self.learned[i]:
                spans.append(span)
        return spans

    def find_marked(self, text, i, prompt_length):
        content = self.messages[i]["content"]
        mark = MARK.format(i)
        messages = copy.deepcopy(self.messages)
        messages[i]["content"] = mark
        marked = self.render(messages, False)
        if marked.count(mark) != 1 or marked.replace(mark, content) != self.text:
            return None
        begin = marked.index(mark)
        end = begin + len(content)
        if prompt_length is not None and prompt_length <= begin and not text[prompt_length:begin].strip():
            begin = prompt_length
        match = ENDING.match(text, end)
        return begin, match.end() if match else end


def labels_of_spans(tokenizer, text, spans):
    """Returns the labels by the rule of compute_label_mask() in include/vlmtrain/text/chat_template.h."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    labels = []
    for start, end in offsets:
        inside = any(begin <= start < stop for begin, stop in spans)
        reaches = any(start < begin < end and not text[start:begin].strip() for begin, _ in spans)
        labels.append(int(inside or reaches))
    return labels


def compare(tokenizer, record, ours, template):
    """Returns a result and a detail."""
    try:
        reference = Reference(tokenizer, record)
    except Exception as error:  # as the template raises it
        return ("both refuse" if "error" in ours else "different"), f"transformers: {error}"
    if "error" in ours:
        reason = next((name for text, name in REFUSALS.items() if text in ours["error"]), None)
        return (f"refused: {reason}" if reason else "different"), ours["error"]
    end_of_turn = template["end_of_turn"]
    text, ids, appended = reference.text, reference.ids(), False
    if ours["text"] != text:
        appended = ours["text"] == text.rstrip() + end_of_turn
        if not appended:
            return "different", f"text\n   ours {ours['text']!r}\n  their {text!r}"
        text, ids = ours["text"], tokenizer(ours["text"], add_special_tokens=False)["input_ids"]
    if ours["ids"] != ids:
        return "different", "ids"
    labels = None
    if re.search(r"\{%-?\s*generation", tokenizer.chat_template):
        labels = reference.generation_mask()
    else:
        spans = reference.label_spans(text)
        labels = None if spans is None else labels_of_spans(tokenizer, text, spans)
    if labels is None:
        return "no reference of labels", ""
    if labels != ours["labels"]:
        show = ["".join(tokenizer.decode([id]) if label else "·" for id, label in zip(ids, some)) for some in (ours["labels"], labels)]
        return "different", f"labels\n   ours {show[0]!r}\n  their {show[1]!r}\n  text {text!r}"
    return ("equal, end of turn appended" if appended else "equal"), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="a tokenizer.json")
    parser.add_argument("--program", default="build/release/tokenize_records")
    parser.add_argument("--table", type=pathlib.Path, help="write a Markdown table to this file")
    parser.add_argument("--show", type=int, default=3, help="differences to show of each template")
    parser.add_argument("--show-result", default="different", help="also show results that begin with this")
    arguments = parser.parse_args()
    sources = {}
    listing = arguments.folder / "SOURCES.tsv"
    if listing.exists():
        sources = {line.split("\t")[0]: line.split("\t")[1:3] for line in listing.read_text().splitlines() if line}
    records = conversations()
    totals, rows = collections.Counter(), []
    for file in sorted(arguments.folder.glob("*.jinja")):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = make_checkpoint(folder, file.read_text(), arguments.tokenizer)
            data = pathlib.Path(folder) / "records.jsonl"
            data.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records.values()))
            done = subprocess.run([arguments.program, folder, data], capture_output=True, text=True, check=True)
        template, *ours = [json.loads(line) for line in done.stdout.splitlines()]
        counts, shown = collections.Counter(), 0
        if "error" in template:
            counts["different"] = len(records)
            print(f"--- {file.name}: {template['error']}", file=sys.stderr)
        else:
            for (name, record), one in zip(records.items(), ours, strict=True):
                result, detail = compare(tokenizer, record, one, template)
                counts[result] += 1
                if (result == "different" or result.startswith(arguments.show_result)) and shown < arguments.show:
                    shown += 1
                    print(f"--- {file.name}, {name}: {detail}", file=sys.stderr)
        totals += counts
        repository, path = sources.get(file.name, ["", file.name])
        words = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
        rows.append(f"| {repository} | {path} | {words} |")
        print(f"{file.name}: {words}", flush=True)
    if arguments.table:
        arguments.table.write_text("\n".join(["| repository | path | of 84 conversations |", "|---|---|---|"] + rows) + "\n")
    print(f"{len(rows)} templates: " + ", ".join(f"{count} {result}" for result, count in sorted(totals.items())))
    return 1 if totals["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
