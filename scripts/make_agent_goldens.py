#!/usr/bin/env python3
"""Writes tests/text/data/agents.golden.json: conversations with tools and reasoning as jinja2 renders them, with their labels.

    make_agent_goldens.py

The eight templates below are written in the manner of published ones. Labels of an answer with tool calls or reasoning are what
rendering the conversation through this answer adds to the rendering of the turns before it with the generation prompt, through
the end of turn. Where that is not a prefix of the whole text, as with reasoning that a template removes from earlier answers, the
label is the text of the answer and the end of turn; a conversation with tool calls is then refused. Needs jinja2 >= 3.1.6.
"""
import json
import pathlib

import jinja_reference

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/text/data"

SYSTEM_TOOLS = (
    "{%- if tools %}<|im_start|>system\n{{ messages[0].content + '\n\n' if messages[0].role == 'system' else '' }}# Tools\n<tools>"
    "{%- for tool in tools %}{{ '\n' + tool | tojson }}{%- endfor %}\n</tools><|im_end|>\n"
    "{%- elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{%- endif %}"
)
TOOL_OUTPUT = (
    "{%- elif message.role == 'tool' %}{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{%- endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
)
JSON_CALLS = (
    "{%- for call in message.tool_calls or [] %}{%- set call = call.function if call.function else call %}"
    "{{ '\n' if not loop.first or message.content else '' }}<tool_call>\n{\"name\": \"{{ call.name }}\", \"arguments\": "
    "{{ call.arguments if call.arguments is string else call.arguments | tojson }}}\n</tool_call>{%- endfor %}"
)
PROMPT = "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def chatml(answer: str, prompt: str = PROMPT, before: str = "") -> str:
    return (before + SYSTEM_TOOLS + "{%- for message in messages %}{%- if message.role == 'user' %}<|im_start|>user\n"
            "{{ message.content }}<|im_end|>\n{% elif message.role == 'assistant' %}" + answer + TOOL_OUTPUT
            + "{%- endif %}{%- endfor %}" + prompt)


LAST_QUERY = (
    "{%- set ns = namespace(last=messages | length - 1, found=false) %}{%- for message in messages[::-1] %}"
    "{%- if not ns.found and message.role == 'user' %}{%- set ns.found = true %}"
    "{%- set ns.last = (messages | length - 1) - loop.index0 %}{%- endif %}{%- endfor %}"
)
REASONING = "{%- set r = message.reasoning_content if message.reasoning_content is string else '' %}"
TEMPLATES = {
    # JSON in tags, as Hermes and Qwen2.5
    "tags": ("qwen2", chatml("<|im_start|>assistant\n{{ message.content or '' }}" + JSON_CALLS + "<|im_end|>\n")),
    # reasoning only after the last question, as Qwen3
    "reasoning": ("qwen2", chatml(
        REASONING + "<|im_start|>assistant\n{%- if loop.index0 > ns.last and r %}{{ '<think>\n' + r.strip('\n') + '\n</think>\n\n' }}"
        "{%- endif %}{{ (message.content or '').lstrip('\n') }}" + JSON_CALLS + "<|im_end|>\n", before=LAST_QUERY)
        .replace("assistant\n{%- if loop", "assistant\n{% if loop")),
    # the prompt opens the reasoning, as models that always reason
    "open_reasoning": ("qwen2", chatml(
        REASONING + "<|im_start|>assistant\n{% if loop.index0 > ns.last %}{{ '<think>\n' + r + '\n</think>\n\n' }}{% endif %}"
        "{{ message.content or '' }}" + JSON_CALLS + "<|im_end|>\n", before=LAST_QUERY,
        prompt="{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")),
    # parameters in tags, as Qwen3-Coder
    "parameters": ("qwen2", chatml(
        "<|im_start|>assistant\n{{ message.content or '' }}{%- for call in message.tool_calls or [] %}"
        "{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}{%- for key, value in call.function.arguments | items %}"
        "{{ '<parameter=' + key + '>\n' }}{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}{%- endfor %}"
        "{{ '</function>\n</tool_call>' }}{%- endfor %}<|im_end|>\n")),
    # `generation` blocks, as SmolLM3
    "generation": ("qwen2", chatml(
        "<|im_start|>assistant\n{% generation %}{{ message.content or '' }}" + JSON_CALLS + "<|im_end|>{% endgeneration %}\n")),
    # one call as JSON, as Llama 3.1
    "headers": ("qwen2", (
        "{%- if tools %}{{ '<|start_header_id|>system<|end_header_id|>\n\nTools: ' }}{%- for tool in tools %}{{ tool | tojson(indent=4) }}"
        "{%- endfor %}<|im_end|>{%- endif %}{%- for message in messages %}{%- if message.role == 'tool' %}"
        "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content | tojson + '<|im_end|>' }}"
        "{%- elif message.tool_calls %}{%- if message.tool_calls | length != 1 %}"
        "{{ raise_exception('only one call at a time') }}{%- endif %}{%- set call = message.tool_calls[0].function %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"' + call.name + '\", \"parameters\": ' }}"
        "{{ call.arguments | tojson }}{{ '}<|im_end|>' }}{%- else %}"
        "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|im_end|>' }}"
        "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}")),
    # calls in brackets, as Mistral
    "brackets": ("llama2", (
        "{%- for message in messages %}{%- if message.role == 'user' %}{%- if tools and message == (messages | selectattr('role', 'equalto', 'user') | list | last) %}[AVAILABLE_TOOLS] {{ tools | tojson }}"
        "[/AVAILABLE_TOOLS]{%- endif %}{{ '[INST] ' + message.content + '[/INST]' }}{%- elif message.tool_calls %}"
        "[TOOL_CALLS] [{%- for call in message.tool_calls %}{{ call.function | tojson }}{{ ', ' if not loop.last else '' }}{%- endfor %}]</s>"
        "{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS] {\"content\": ' + message.content | tojson + '}[/TOOL_RESULTS]' }}"
        "{%- elif message.role == 'assistant' %}{{ ' ' + message.content + '</s>' }}{%- endif %}{%- endfor %}")),
    # no tools: calls are left out
    "no_tools": ("qwen2", "{%- for m in messages %}<|im_start|>{{ m.role + '\n' + (m.content or '') }}<|im_end|>\n{% endfor %}" + PROMPT),
}
END_OF_TURN = {"qwen2": "<|im_end|>", "llama2": "</s>"}

TOOLS = [
    {"type": "function", "function": {"name": "zoom", "description": "Enlarges a part of the image, 2 < factor.", "parameters": {
        "type": "object", "properties": {"x": {"type": "integer"}, "name": {"type": "string"}}, "required": ["x"]}}},
    {"type": "function", "function": {"name": "read_text", "description": "Reads text.", "parameters": {"type": "object"}}},
]


def call(name, /, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


def answer(content, **more):
    return {"role": "assistant", "content": content, **more}


def tool(content, **more):
    return {"role": "tool", "content": content, **more}


CONVERSATIONS = {
    "unused tools": dict(messages=[user("Is it red?"), answer("Yes."), user("And round?"), answer("No.")], tools=TOOLS),
    "one call": dict(messages=[user("What does it say?"), answer("", tool_calls=[call("read_text")]), tool("EXIT"),
                               answer("It says EXIT.")], tools=TOOLS),
    "null content": dict(messages=[user("What?"), answer(None, tool_calls=[call("zoom", x=3, name="Köln \"Süd\" <a> & b")]),
                                   tool("a cat", name="zoom", tool_call_id="1"), answer("A cat.")], tools=TOOLS),
    "parallel calls": dict(messages=[user("Compare."), answer("I look twice.", tool_calls=[
        call("zoom", x=1), call("zoom", x=2, deep={"a": [1, 2.5, None, True]})]), tool("a cat"), tool("a dog"),
        answer("A cat and a dog.")], tools=TOOLS),
    "reasoning": dict(messages=[user("How many?"), answer("Three.", reasoning_content="One, two, three.")]),
    "reasoning twice": dict(messages=[user("How many?"), answer("Three.", reasoning_content="One, two, three."),
                                      user("Sure?"), answer("Yes.", reasoning_content="I count again.\nThree.")]),
    "reasoning and calls": dict(messages=[
        user("What is it?"), answer("", reasoning_content="I must look.", tool_calls=[call("zoom", x=7)]), tool("fur"),
        answer("", reasoning_content="Still unclear.", tool_calls=[call("read_text", lang="de")]), tool("KATZE"),
        answer("A cat.", reasoning_content="It says cat.")], tools=TOOLS),
    "calls in two rounds": dict(messages=[
        user("What?"), answer("", tool_calls=[call("zoom", x=1)]), tool("fur"), answer("A cat."),
        user("And now?"), answer("Wait.", tool_calls=[call("zoom", x=2)]), tool("wood"), answer("A table.")], tools=TOOLS),
    "ends with a call": dict(messages=[user("Zoom in."), answer("", tool_calls=[call("zoom", x=1)])], tools=TOOLS),
    "not learned": dict(messages=[user("What?"), answer("", tool_calls=[call("zoom", x=1)], loss=False), tool("fur"),
                                  answer("A cat.")], tools=TOOLS),
}


def find_labels(render, messages, end_of_turn):
    """Returns the byte ranges of the labels, or the number of the turn that is refused."""
    whole = render(messages, False)
    spans, previous_end = [], 0
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, reasoning, calls = render(messages[:i], True), message.get("reasoning_content", ""), message.get("tool_calls", [])
        if any(c["function"]["name"] not in whole for c in calls):
            return i + 1
        if (reasoning or calls) and whole.startswith(prompt):
            added = render(messages[:i + 1], False)[len(prompt):]
            added = added[:added.rindex(end_of_turn) + len(end_of_turn)]
            if not whole[len(prompt):].startswith(added):  # reasoning that is removed from earlier answers
                added = message["content"] + end_of_turn
                assert whole[len(prompt):].startswith(added), (whole, added)
            begin = len(prompt)
        else:
            if calls:
                return i + 1
            # What the template writes before the answer is not learned.
            begin = whole.index(message["content"] + end_of_turn, previous_end)
            added = message["content"] + end_of_turn
            if whole[begin - 1:begin] == " " and not prompt.endswith(" "):
                begin, added = begin - 1, " " + added
        previous_end = begin + len(added)
        if message.get("loss", True):
            spans.append([len(whole[:begin].encode()), len(whole[:begin + len(added)].encode())])
    return spans


def main():
    environment = jinja_reference.environment()
    entries = []
    for template_name, (tokenizer, source) in TEMPLATES.items():
        template = environment.from_string(source)
        for name, conversation in CONVERSATIONS.items():
            messages = conversation["messages"]

            def render(some, add_generation_prompt):
                shown = [{key: value for key, value in message.items() if key != "loss"} for message in some]
                return template.render(messages=shown, tools=conversation.get("tools"), documents=None,
                                       add_generation_prompt=add_generation_prompt)

            entry = {"template": template_name, "conversation": name}
            try:
                entry["text"] = render(messages, False)
            except Exception as error:  # as the template raises it
                entry["error"] = str(error)
            else:
                labels = find_labels(render, messages, END_OF_TURN[tokenizer])
                entry["refused_turn" if isinstance(labels, int) else "labels"] = labels
            entries.append(entry)
    golden = {"templates": {name: {"tokenizer": tokenizer, "source": source} for name, (tokenizer, source) in TEMPLATES.items()},
              "conversations": CONVERSATIONS, "entries": entries}
    (DATA / "agents.golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(entries)} conversations, {sum('refused_turn' in e for e in entries)} refused, "
          f"{sum('error' in e for e in entries)} rejected by their template")


if __name__ == "__main__":
    main()
