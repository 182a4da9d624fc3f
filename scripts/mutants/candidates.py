"""Candidate mutations of a source file, from clang's syntax tree."""

import dataclasses
import json
import re
import shlex
import subprocess

import clang.cindex as cindex
from clang.cindex import CursorKind as Kind
from clang.cindex import TypeKind

PARTS = ("train", "evaluation", "planner", "engine")

OPERATORS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "&&": ("||",), "||": ("&&",), "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("*",),
    "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",), "|=": ("&=",), "&=": ("|=",), "++": ("--",), "--": ("++",),
}
COMPARISONS = {"<", "<=", ">", ">=", "==", "!="}

# Mutations that only change texts or speed are not useful.
WORDS = re.compile(r"(spdlog::|fmt::|log_run\b|note_|user_error|usage_error|data_error|run_error|config_error|VLMTRAIN_CHECK)")
ONLY_FASTER = re.compile(r"(\.|->)(reserve|shrink_to_fit)\(")
# Kinds whose numbers are no values of the program.
NO_VALUES = {Kind.STATIC_ASSERT, Kind.ENUM_DECL, Kind.CASE_STMT, Kind.TYPE_REF, Kind.TEMPLATE_REF, Kind.CXX_THROW_EXPR,
             Kind.TEMPLATE_NON_TYPE_PARAMETER, Kind.STRING_LITERAL, Kind.ALIGNED_ATTR}


@dataclasses.dataclass
class Candidate:
    """A mutation at one place. `pieces` are the byte ranges of the operands, which may contain other mutations."""

    path: str
    kind: str
    start: int
    end: int
    line: int
    pieces: list
    before: str
    after: str
    how: str  # kind of change, see rewrite.py
    constexpr_at: int = -1  # offset of the keyword to remove
    function: str = ""
    number: int = 0

    def key(self):
        return f"{self.path}|{self.function}|{self.kind}|{self.before}|{self.after}"


def _resource_folder():
    return subprocess.run(["clang", "-print-resource-dir"], check=True, capture_output=True, text=True).stdout.strip()


def _arguments(build, part):
    """Returns the compiler's preprocessor and language arguments for the files of a part."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if f"CMakeFiles/vlmtrain_{part}.dir/" in entry["command"]:
            words = shlex.split(entry["command"])
            flags = [word for word in words if re.match(r"-(D|I|std=)", word)]
            for at, word in enumerate(words):
                if word == "-isystem":
                    flags += words[at : at + 2]
            return flags
    raise SystemExit(f"{build} has no part {part}")


class _Walker:
    def __init__(self, root, path):
        self.path = path
        self.text = (root / path).read_bytes()
        self.candidates = []

    def source(self, start, end):
        return self.text[start:end].decode()

    def add(self, kind, cursor_or_range, after, how, pieces=(), before=None, **more):
        start, end = cursor_or_range
        if before is None:
            before = self.source(start, end)
        line = self.text.count(b"\n", 0, start) + 1
        self.candidates.append(Candidate(self.path, kind, start, end, line, [list(piece) for piece in pieces],
                                    " ".join(before.split()), " ".join(after.split()), how, self.constexpr_at,
                                    self.function, **more))

    constexpr_at = -1
    function = ""

    def walk(self, cursor, in_statement=False):
        kind = cursor.kind
        if kind in NO_VALUES:
            return
        extent = (cursor.extent.start.offset, cursor.extent.end.offset)
        text = self.source(*extent)
        if kind in (Kind.CALL_EXPR, Kind.UNEXPOSED_EXPR) and WORDS.match(text):
            return
        saved = self.constexpr_at, self.function
        if kind == Kind.VAR_DECL:
            head = self.text[extent[0] : cursor.location.offset]
            at = head.find(b"constexpr")
            if at >= 0:
                self.constexpr_at = extent[0] + at
        if kind in (Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR, Kind.FUNCTION_TEMPLATE):
            self.function = cursor.spelling
        if kind in (Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR, Kind.CALL_EXPR):
            self.operator(cursor, extent)
        if kind in (Kind.IF_STMT, Kind.WHILE_STMT, Kind.CONDITIONAL_OPERATOR):
            self.condition(cursor)
        if kind == Kind.RETURN_STMT:
            self.returned(cursor, extent)
        if kind in (Kind.INTEGER_LITERAL, Kind.FLOATING_LITERAL, Kind.CXX_BOOL_LITERAL_EXPR):
            self.constant(kind, text, extent)
        children = list(cursor.get_children())
        for index, child in enumerate(children):
            is_statement = kind == Kind.COMPOUND_STMT or (
                kind in (Kind.IF_STMT, Kind.FOR_STMT, Kind.CXX_FOR_RANGE_STMT, Kind.WHILE_STMT) and index > 0)
            if is_statement:
                self.statement(child)
            self.walk(child)
        self.constexpr_at, self.function = saved

    def operator(self, cursor, extent):
        children = list(cursor.get_children())
        is_overloaded = cursor.kind == Kind.CALL_EXPR
        if is_overloaded:
            if not cursor.spelling.startswith("operator") or len(children) != 3:
                return
            children = [children[0], children[2]]
        if len(children) != 2:
            return
        left, right = ((c.extent.start.offset, c.extent.end.offset) for c in children)
        if left[1] >= right[0] or left[0] != extent[0] or right[1] != extent[1]:
            return
        sign = self.source(left[1], right[0]).strip()
        if sign not in OPERATORS:
            return
        if sign not in COMPARISONS | {"&&", "||"}:
            type_ = cursor.type.get_canonical()
            is_number = type_.kind in (TypeKind.INT, TypeKind.UINT, TypeKind.LONG, TypeKind.ULONG, TypeKind.DOUBLE,
                                       TypeKind.FLOAT, TypeKind.LONGLONG, TypeKind.ULONGLONG, TypeKind.BOOL)
            if not is_number and "at::Tensor" not in type_.spelling:
                return
        for other in OPERATORS[sign]:
            self.add("operator", extent, f"{self.source(*left)} {other} {self.source(*right)}", f"operator {sign} {other}",
                     (left, right))

    def condition(self, cursor):
        if re.match(r"if\s+constexpr", self.source(cursor.extent.start.offset, cursor.extent.end.offset)[:16]):
            return
        for child in cursor.get_children():
            start, end = child.extent.start.offset, child.extent.end.offset
            before = self.text[:start].rstrip()[-1:]
            after = self.text[end:].lstrip()[:1]
            if cursor.kind == Kind.CONDITIONAL_OPERATOR:
                is_condition = start == cursor.extent.start.offset and after == b"?"
            else:
                is_condition = before in (b"(", b";") and after == b")" and child.kind not in (
                    Kind.DECL_STMT, Kind.COMPOUND_STMT, Kind.VAR_DECL)
            if is_condition:
                self.add("condition", (start, end), f"!({self.source(start, end)})", "negate", [(start, end)])
                return

    def statement(self, cursor):
        while cursor.kind == Kind.UNEXPOSED_EXPR:
            children = list(cursor.get_children())
            if len(children) != 1:
                return
            cursor = children[0]
        kinds = {Kind.CALL_EXPR: "call", Kind.COMPOUND_ASSIGNMENT_OPERATOR: "assignment",
                 Kind.BINARY_OPERATOR: "assignment", Kind.UNARY_OPERATOR: "assignment"}
        if cursor.kind not in kinds:
            return
        extent = (cursor.extent.start.offset, cursor.extent.end.offset)
        text = self.source(*extent)
        if self.text[extent[1] :].lstrip()[:1] != b";" or WORDS.match(text) or ONLY_FASTER.search(text):
            return
        kind = kinds[cursor.kind]
        if cursor.kind == Kind.CALL_EXPR and cursor.spelling == "operator=":
            kind = "assignment"
        self.add(kind, extent, "", "remove", [extent])

    def returned(self, cursor, extent):
        children = list(cursor.get_children())
        text = self.source(*extent)
        if len(children) != 1 or self.text[extent[1] :].lstrip()[:1] != b";":
            return
        value = children[0]
        piece = (value.extent.start.offset, value.extent.end.offset)
        type_ = value.type.get_canonical()
        if type_.kind == TypeKind.BOOL:
            self.add("return", extent, f"return !({self.source(*piece)})", "negate_return", [piece])
        elif type_.kind in (TypeKind.INT, TypeKind.LONG, TypeKind.ULONG, TypeKind.UINT, TypeKind.DOUBLE, TypeKind.FLOAT):
            self.add("return", extent, f"return ({self.source(*piece)}) + 1", "return_one_more", [piece])
        elif type_.kind == TypeKind.RECORD and "(lambda" not in type_.spelling and not re.match(
                r"return\s*(\{|std::nullopt|\w*\(\)|std::string\(\))", text):
            self.add("return", extent, "return {}", "return_nothing", [piece])

    def constant(self, kind, text, extent):
        if kind == Kind.CXX_BOOL_LITERAL_EXPR:
            after = {"true": "false", "false": "true"}.get(text)
        elif kind == Kind.INTEGER_LITERAL:
            match = re.fullmatch(r"([0-9']+)([uUlLzZ]*)", text)
            if not match:
                return
            value = int(match[1].replace("'", ""))
            after = str(2 * value if value >= 10 else value + 1) + match[2]
        else:
            match = re.fullmatch(r"([0-9'.]+(?:[eE][-+]?[0-9]+)?)([fF]?)", text)
            if not match:
                return
            value = float(match[1].replace("'", ""))
            after = repr(2 * value if value else 1.0) + match[2]
        if after is not None:
            context = self.source(self.text.rfind(b"\n", 0, extent[0]) + 1, self.text.find(b"\n", extent[1]))
            self.add("constant", extent, after, "replace", before=text)
            self.candidates[-1].before = f"{text} in `{' '.join(context.split())}`"


def _read(argument):
    root, paths, arguments = argument
    together = "".join(f'#include "{root / path}"\n' for path in paths)
    unit = cindex.Index.create().parse("together.cpp", args=[*arguments, "-resource-dir", _resource_folder()],
                                       unsaved_files=[("together.cpp", together)])
    errors = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
    if errors:
        raise SystemExit(f"clang cannot read {paths}: {errors[0]}")
    walkers = {str(root / path): _Walker(root, path) for path in paths}
    for cursor in unit.cursor.get_children():
        if cursor.location.file is not None and cursor.location.file.name in walkers:
            walkers[cursor.location.file.name].walk(cursor)
    return [candidate for walker in walkers.values() for candidate in walker.candidates]


def find(root, build, pool):
    """Returns all candidates of the parts, file by file. Parses several files of a part as one, because LibTorch's headers take
    most of the time and names do not collide within a part."""
    jobs = []
    for part in PARTS:
        paths = sorted(str(path.relative_to(root)) for path in (root / "src" / part).rglob("*.cpp"))
        arguments = _arguments(build, part)
        jobs += [(root, paths[first : first + 8], arguments) for first in range(0, len(paths), 8)]
    return [candidate for candidates in pool.map(_read, jobs) for candidate in candidates]
