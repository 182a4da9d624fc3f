#!/usr/bin/env python3
"""Writes the reference data of the metric tests: answers with the values of public implementations.

    make_metric_goldens.py          (needs jiwer and lmms-eval, installed with pip install --no-deps; see SOURCES.md)

tests/evaluation/data/metrics/
    answers.json    500 pairs of "expected" and "prediction" with "cer", "wer", "anls", "relaxed_accuracy" and
                    "numeric" per pair, and "cer" and "wer" of all pairs together; null without a value
    choices.json    500 answers with their "choice", a letter or null
    boxes.json      200 pairs of boxes with their "iou", and 100 pairs of box lists with the IoU of the best matching

CER and WER are those of jiwer, with white space between words as torchmetrics splits it. The functions of lmms-eval are
taken out of its files, since its modules import the packages of all its tasks. No public package has the metric
"numeric"; its definition is evaluated with the regular expression in src/evaluation/metrics/text_metrics.h.
"""

import ast
import importlib.metadata
import importlib.util
import json
import math
import pathlib
import random
import re
import typing

import jiwer

from goldens import write_cases

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/evaluation/data/metrics"
PAIRS = 500
TOLERANCE = 0.05
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)

WORDS = """the a total invoice Revenue growth Straße ÉCOLE naïve façade Ελλάδα ΣΊΣΥΦΟΣ Москва İstanbul 東京 数据 한국어 مرحبا ﬁnance 🙂
    x-ray T2 no yes left right lung Q4 2019 B2B don't "quoted" (see) e.g. ½ ²""".split()
NUMBERS = """0 0.0 -0 1 7 42 100 105 106 95 94.9 3.14 -2.5 +6 1,000 1,234,567.5 1,2345 12,34 1e3 1E-2 .5 5. 1_000 inf -Infinity nan 50% 52% 0.5
    49.9% 5%% % 2010-2015 -3 $5 v1.2 007 1e400 1.05e2 €7,50""".split()
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u3000", " \r\n "]


def lmms_function(path: str, *names: str) -> typing.Any:
    """Returns the last of the named definitions in a file of lmms-eval, which may use the others."""
    root = pathlib.Path(importlib.util.find_spec("lmms_eval").submodule_search_locations[0])
    tree = ast.parse((root / path).read_text())
    names_of = {node: [node.name] if isinstance(node, ast.FunctionDef) else [getattr(target, "id", None) for target in node.targets]
                for node in tree.body if isinstance(node, (ast.FunctionDef, ast.Assign))}
    module = ast.Module([node for node, defined in names_of.items() if set(defined) & set(names)], [])
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    scope = {"List": typing.List, "Optional": typing.Optional}
    exec(compile(module, path, "exec"), scope)
    return scope[names[-1]]


ANLS = lmms_function("api/metrics.py", "levenshtein_distance", "anls")
RELAXED = lmms_function("tasks/chartqa/utils.py", "relaxed_correctness")
CHOICE = lmms_function("tasks/_task_utils/mcq_extract.py", "_DEFAULT_CHOICES", "_ANSWER_PHRASES", "_FORMAT_PRIORITY", "extract_mcq_answer")
IOU = lmms_function("tasks/refcoco/utils_rec.py", "compute_iou")


def draw_phrase(source: random.Random) -> str:
    pieces = [source.choice(WORDS if source.random() < 0.75 else NUMBERS) for _ in range(source.randint(0, 7))]
    text = "".join(piece + source.choice(SPACES) for piece in pieces)
    return text if source.random() < 0.2 else text.strip()


def change(text: str, source: random.Random) -> str:
    """Returns the text with a few edited characters, in another case, or with a word less."""
    kind = source.randrange(5)
    if kind == 0:
        return text
    if kind == 1:
        return source.choice([str.upper, str.lower, str.title])(text)
    if kind == 2:
        words = text.split(" ")
        del words[source.randrange(len(words))]
        return " ".join(words)
    characters = list(text)
    for _ in range(source.randint(1, 6)):
        place = source.randint(0, len(characters))
        characters[place:place + source.randint(0, 1)] = source.choice(["", "a", "é", " ", "7", "東"])
    return "".join(characters)


def draw_pairs(source: random.Random) -> list[tuple[str, str]]:
    pairs = [("", ""), ("", "x"), ("x", ""), (" \n", "\t"), ("abcd", "abxy"), ("abcd", "axyz")]
    while len(pairs) < PAIRS // 2:
        expected = draw_phrase(source)
        pairs.append((expected, change(expected, source) if source.random() < 0.8 else draw_phrase(source)))
    while len(pairs) < PAIRS:
        pairs.append((source.choice(NUMBERS), source.choice(NUMBERS)))
        if source.random() < 0.4:
            number = source.uniform(-200, 200)
            pairs[-1] = (f"{number:.2f}", f"{number * source.uniform(0.93, 1.07):.3f}")
    return pairs


def with_single_spaces(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def rate(measure: typing.Callable, expected: str, prediction: str) -> float | None:
    """Returns a rate of jiwer; null for an empty reference, for which jiwer returns the number of insertions."""
    return measure(expected, prediction) if expected.strip() else None


def numeric(expected: str, prediction: str) -> float | None:
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (expected, prediction)]
    if not numbers[0] or not math.isfinite(numbers[0][-1]):
        return None
    if not numbers[1]:
        return 0.0
    truth, predicted = numbers[0][-1], numbers[1][-1]
    return float(abs(predicted - truth) <= (TOLERANCE * abs(truth) if truth != 0 else TOLERANCE))


def answer_cases(pairs: list[tuple[str, str]]) -> list[dict]:
    cases = []
    for expected, prediction in pairs:
        spaced = with_single_spaces(expected), with_single_spaces(prediction)
        cases.append({
            "expected": expected, "prediction": prediction, "cer": rate(jiwer.cer, expected, prediction),
            "wer": rate(jiwer.wer, *spaced), "anls": ANLS([expected], [prediction])["anls"],
            "relaxed_accuracy": float(RELAXED(prediction, expected)), "numeric": numeric(expected, prediction)})
    return cases


def choice_cases(source: random.Random) -> list[dict]:
    letters, texts = "ABCDEFGHIb", ["a cat", "Dogs", "the Eiffel Tower", "12 cm", "because it is Blue", "", "전부", "None of them"]
    formats = ["{0}", "({0})", "{0}.", "{0}) {1}", "{0}: {1}", "Answer: {0}", "The answer is {0}", "The best answer is ({0}). {1}", "I pick {0}",
               "{1}", "{0} {1}", "{1} {0}", "**{0}**", "'{0}'", "{0}", "정답은 {0}", "答案是{0}。", "({0}) or ({2})", "{0}, {2}", "Not {0}, so {2}.",
               "it is option {0} because {1}", "({0}) is wrong, {2}", "{0}: no. The answer is {2} or {1}", "  {0} .  ", "\u0130 answer is {0} {1}", "É{0}", "{0}É", "\n{0}\n{1}"]
    cases = []
    for _ in range(PAIRS):
        answer = source.choice(formats).format(source.choice(letters), source.choice(texts), source.choice(letters))
        cases.append({"answer": answer, "choice": CHOICE(answer) or None})
    return cases


def draw_box(source: random.Random) -> list[int]:
    x, y = source.randint(0, 60), source.randint(0, 60)
    return [x, y, x + source.randint(1, 40), y + source.randint(1, 40)]


def match(expected: list[list[int]], predicted: list[list[int]]) -> list[float]:
    """Returns the IoU of each expected box, matched in descending order of IoU."""
    pairs = [(IOU(truth, box), i, j) for i, truth in enumerate(expected) for j, box in enumerate(predicted)]
    ious, used = [0.0] * len(expected), set()
    for iou, i, j in sorted(pairs, key=lambda pair: -pair[0]):
        if ious[i] == 0 and j not in used and iou > 0:
            ious[i] = iou
            used.add(j)
    return ious


def box_list_cases(source: random.Random) -> list[dict]:
    cases = []
    for _ in range(100):
        expected = [draw_box(source) for _ in range(source.randint(1, 5))]
        predicted = [[max(0, value + source.randint(-4, 4)) for value in box] for box in expected]
        predicted = [box for box in predicted if box[0] < box[2] and box[1] < box[3]] + [draw_box(source)]
        source.shuffle(predicted)
        predicted = predicted[:source.randint(0, len(predicted))]
        ious = match(expected, predicted)
        cases.append({"expected": expected, "predicted": predicted, "iou": sum(ious) / len(ious),
                      "accuracy": sum(iou >= 0.5 for iou in ious) / len(ious)})
    return cases


def box_pair_cases(source: random.Random) -> list[dict]:
    pairs = [(draw_box(source), draw_box(source)) for _ in range(200)]
    return [{"a": a, "b": b, "iou": IOU(a, b)} for a, b in pairs]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    source = random.Random(20261127)
    pairs = draw_pairs(source)
    cases = answer_cases(pairs)
    assert all(math.isfinite(value) for case in cases for value in case.values() if isinstance(value, float))
    expected, predictions = [list(texts) for texts in zip(*pairs)]
    write_cases(FOLDER / "answers.json", {
        "cer": jiwer.cer(expected, predictions),
        "wer": jiwer.wer([with_single_spaces(text) for text in expected], [with_single_spaces(text) for text in predictions]),
        "cases": cases})
    write_cases(FOLDER / "choices.json", {"cases": choice_cases(source)})
    write_cases(FOLDER / "boxes.json", {"pairs": box_pair_cases(source), "lists": box_list_cases(source)})
    versions = " and ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jiwer", "lmms-eval"))
    (FOLDER / "SOURCES.md").write_text(
        "# Sources\n\n"
        "Answers, multiple-choice answers and boxes with the values of public implementations of the metrics.\n\n"
        f"Made by `scripts/make_metric_goldens.py` with {versions}; drawn by that script.\n\n"
        "| values | reference |\n|---|---|\n"
        "| `cer`, `wer` | jiwer: `cer`, `wer`; for `wer` with one space for each run of white space |\n"
        "| `anls` | lmms-eval: `anls` in `api/metrics.py` |\n"
        "| `relaxed_accuracy` | lmms-eval: `relaxed_correctness` in `tasks/chartqa/utils.py` |\n"
        "| `choice` | lmms-eval: `extract_mcq_answer` in `tasks/_task_utils/mcq_extract.py` |\n"
        "| `iou` of pairs | lmms-eval: `compute_iou` in `tasks/refcoco/utils_rec.py` |\n"
        "| `iou`, `accuracy` of lists | the same, with the matching of the script |\n"
        "| `numeric` | the script itself |\n")


if __name__ == "__main__":
    main()
