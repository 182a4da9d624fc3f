"""engine/data/sampling.json: what transformers' logits processors leave of some logits.

A list of {"temperature", "top_k", "top_p", "repetition_penalty", "occurred" (token ids of each sequence), "logits" and
"probabilities" (each [sequences][vocabulary])}, with the names and defaults of GenerationConfig. Probabilities are float64 softmax of
what the processors give in float32, in the order in which generate() runs them.
"""

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from library.cases import write_lines

SETTINGS = [
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
    {"temperature": 0.6, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
    {"temperature": 1.0, "top_k": 5, "top_p": 1.0, "repetition_penalty": 1.0},
    {"temperature": 1.0, "top_k": 100, "top_p": 1.0, "repetition_penalty": 1.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.8, "repetition_penalty": 1.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.001, "repetition_penalty": 1.0},
    {"temperature": 1.7, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.3},
    {"temperature": 0.2, "top_k": 50, "top_p": 0.95, "repetition_penalty": 0.8},
]
SEQUENCES, VOCABULARY = 3, 30


def processors(settings):
    selection = LogitsProcessorList()
    if settings["repetition_penalty"] != 1:
        selection.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if settings["temperature"] != 1:
        selection.append(TemperatureLogitsWarper(settings["temperature"]))
    if settings["top_k"] != 0:
        selection.append(TopKLogitsWarper(settings["top_k"]))
    if settings["top_p"] < 1:
        selection.append(TopPLogitsWarper(settings["top_p"]))
    return selection


def make(tests):
    generator = torch.Generator().manual_seed(5)
    cases = []
    for settings in SETTINGS:
        logits = torch.randn(SEQUENCES, VOCABULARY, generator=generator) * 2
        logits[0, 3:6] = logits[0].max()  # as probable as each other, at the border of top_k
        occurred = torch.randint(VOCABULARY, (SEQUENCES, 7), generator=generator)
        processed = processors(settings)(occurred, logits.clone())
        cases.append(settings | {
            "occurred": occurred.tolist(), "logits": logits.tolist(), "probabilities": processed.double().softmax(-1).tolist(),
        })
    write_lines(tests / "engine" / "data" / "sampling.json", cases)
