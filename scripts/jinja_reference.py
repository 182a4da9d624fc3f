"""The reference for src/text/jinja: jinja2 as transformers configures it, and conversations to render.

Used by make_jinja_goldens.py and check_public_templates.py. Needs only jinja2 >= 3.1.6; the configuration is that of
transformers 5.23.0 in utils/chat_template_utils.py.
"""
import json
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = "2026-11-22T10:30:00"


class Generation(jinja2.ext.Extension):
    """The `generation` block: a call block that writes its content."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller):
        return caller()


class Dicts:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


class Namespaces(jinja2.utils.Namespace):
    """Rejects names that begin with an underscore."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespaces.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespaces.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def environment() -> ImmutableSandboxedEnvironment:
    built_items = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    built_items.filters["tojson"] = tojson
    built_items.globals["raise_exception"] = raise_exception
    built_items.globals["strftime_now"] = lambda form: datetime.fromisoformat(NOW).strftime(form)
    built_items.globals["dict"] = Dicts()
    built_items.globals["namespace"] = Namespaces
    return built_items


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a place, <now> & later.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "A town, such as \"Köln\""},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "description": "How many days", "default": 3}},
            "required": ["place"]},
        "return": {"type": "object", "properties": {"degrees": {"type": "number"}}}}},
    {"type": "function", "function": {
        "name": "count_ships", "description": "Counts ships.", "parameters": {
            "type": "object", "properties": {"harbour": {"type": "array", "items": {"type": "string"}}}, "required": []}}},
]


def text(words):
    return {"type": "text", "text": words}


IMAGE = {"type": "image"}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def conversations() -> dict[str, dict]:
    """Returns twelve sets of variables by name."""
    long = " ".join(f"Word number {i} of a text that goes on." for i in range(400))
    turns = []
    for i in range(12):
        turns += [message("user", f"Question {i}?"), message("assistant", f"Answer {i}.")]
    call = {"type": "function", "id": "call12345", "function": {
        "name": "get_weather", "arguments": {"place": "Köln", "unit": "celsius", "days": 2}}}
    base = {
        "question": dict(messages=[message("user", "What is in the picture?")], add_generation_prompt=True),
        "answered": dict(messages=[message("user", "  Hello there!\n"), message("assistant", " Hi.\n")],
                         add_generation_prompt=False),
        "system": dict(messages=[message("system", "You are brief."), message("user", "1 < 2?"),
                                 message("assistant", "Yes: 1 < 2 & \"so on\"."), message("user", "And 'now'?")],
                       add_generation_prompt=True),
        "images": dict(messages=[message("user", [IMAGE, text("Compare "), IMAGE, text("and this.")]),
                                 message("assistant", [text("They differ.")]), message("user", [text("How?"), IMAGE])],
                       add_generation_prompt=True),
        "system_blocks": dict(messages=[message("system", [text("You see well.")]), message("user", [IMAGE, text("What?")]),
                                        message("assistant", [text("A cat.")])], add_generation_prompt=False),
        "empty": dict(messages=[message("user", ""), message("assistant", ""), message("user", " "),
                                message("assistant", "\n")], add_generation_prompt=False),
        "unicode": dict(messages=[message("user", "Größe? 你好 🐈‍⬛ \u00a0ñ\u0301"), message("assistant", "ΑΣ — ß, 𝔘ñí\u200d."),
                                  message("user", "مرحبا\u3000")], add_generation_prompt=True),
        "long": dict(messages=[message("user", long), message("assistant", long[:5000])], add_generation_prompt=False),
        "turns": dict(messages=turns, add_generation_prompt=False),
        "tools": dict(messages=[message("system", "Use tools."), message("user", "Weather in Köln?"),
                                message("assistant", "", tool_calls=[call]),
                                message("tool", "{\"degrees\": 7.5}", name="get_weather", tool_call_id="call12345"),
                                message("assistant", "7.5 degrees."), message("user", "And ships?")],
                      tools=TOOLS, add_generation_prompt=True),
        "reasoning": dict(messages=[message("user", "2 + 2?"),
                                    message("assistant", "<think>\nTwo and two.\n</think>\n\nFour.",
                                            reasoning_content="Two and two."),
                                    message("user", "Sure?"), message("assistant", "<think>Hm.</think>Yes.")],
                          add_generation_prompt=False, enable_thinking=False),
        "odd": dict(messages=[message("assistant", "I begin."), message("user", "Well?"), message("user", "Again?"),
                              message("critic", "No.")], add_generation_prompt=True, enable_thinking=True),
    }
    for variables in base.values():
        variables.setdefault("tools", None)
        variables["documents"] = None
        variables.update(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    return base
