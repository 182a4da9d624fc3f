"""Makes the cases of text models of ../data: python make_text_reference.py [--only CASE]. The files are those of make_reference.py.

case.json says under `deviation` how far float32 (what is stored) is from float64.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from transformers.models.gemma3 import modeling_gemma3

from library import text_checkpoints
from library import text_format
from library import thin
from library import training
from library.cases import Case, sample
from library.text_checkpoints import Shape
from make_gemma3_reference import wide_norm
from make_llava_reference import summary
from make_reference import NEW_TOKENS, SMALLEST_LEAD, describe, expected_tensors

TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
}
WORDS = sample("words", [], "Is there a fracture? Grüße, 東京", "No, there is none. Ça va")
TURNS = sample(
    "turns", [], "Which colour is the ball?", "It is red. It isn't on the table!", "How many images are there?", "42",
)
SHORT = sample("short", [], "What has changed?", "The heart is enlarged.")

CASES = [
    Case(
        name="qwen3_text",
        about="files as transformers 5 saves them, with a chat template of strings, tied: heads of another size than hidden_size / "
        "num_attention_heads",
        shape=Shape(
            layout="saved", seed=91, with_template=True,
            config={"model_type": "qwen3", "head_dim": 16, "rope_theta": 1000000.0, "tie_word_embeddings": True} | TEXT,
        ),
        samples=[WORDS, TURNS, SHORT],
        generate="turns",
    ),
    Case(
        name="llama_text",
        about="keys of the published checkpoints, without a chat template, untied: biases, the rope scaling of Llama 3.1",
        shape=Shape(
            layout="hub", seed=92,
            config={"model_type": "llama", "attention_bias": True, "mlp_bias": True, "rope_theta": 500000.0,
                    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                     "original_max_position_embeddings": 64},
                    "tie_word_embeddings": False} | TEXT,
        ),
        samples=[TURNS, SHORT, WORDS],
        generate="words",
    ),
    Case(
        name="gemma3_text",
        about="keys of the published checkpoints, without a chat template, tied without the key: a window shorter than the samples in "
        "every block but the third",
        shape=Shape(
            layout="hub", seed=93,
            config=TEXT | {"model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 3, "num_key_value_heads": 1,
                           "query_pre_attn_scalar": 21, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                           "sliding_window": 7, "sliding_window_pattern": 3},
        ),
        samples=[SHORT, TURNS, WORDS],
        generate="short",
    ),
    Case(
        name="smollm3_text",
        about="keys of the published checkpoints, without a chat template, tied without the key: every other block without rope",
        shape=Shape(
            layout="hub", seed=94,
            config=TEXT | {"model_type": "smollm3", "no_rope_layers": [1, 0, 1], "num_hidden_layers": 3, "rope_theta": 5000000.0,
                           "num_key_value_heads": 1, "use_sliding_window": False},
        ),
        samples=[WORDS, TURNS],
        generate="words",
    ),
]


def generation(case, checkpoint, tokenizer):
    record = next(record for record in case.samples if record["id"] == case.generate)
    prompt = text_format.encode(tokenizer, case.shape, record, turns=1)
    new_ids, lead = training.generate(checkpoint, training.forward_inputs(prompt, torch.float32), NEW_TOKENS)
    assert len(new_ids) == NEW_TOKENS, "the answer ended early: choose another seed"
    assert lead > SMALLEST_LEAD, f"the closest choice of a token has a lead of only {lead}: choose another seed"
    return {"generation.prompt_ids": prompt.input_ids, "generation.new_ids": new_ids}


def make(case, out):
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    checkpoint = folder / "checkpoint"
    tokenizer = text_checkpoints.write(case.shape, checkpoint)
    text = json.dumps(case.samples, indent=2, ensure_ascii=False)
    (folder / "conversations.json").write_text(text + "\n")
    samples = [text_format.encode(tokenizer, case.shape, record) for record in case.samples]
    single = training.run(checkpoint, samples, torch.float32)
    double = training.run(checkpoint, samples, torch.float64)
    tensors = expected_tensors(samples, single) | {"loss_float64": double.loss}
    tensors |= generation(case, checkpoint, tokenizer)
    thin.save(tensors, folder / "expected.safetensors")
    description = describe(case, samples, single) | {"deviation": summary(single, double)}
    (folder / "case.json").write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
    print(case.name, json.dumps(description["deviation"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "data")
    parser.add_argument("--only", help="make only this case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    modeling_gemma3.Gemma3RMSNorm.forward = wide_norm
    print("transformers", transformers.__version__)
    for case in CASES:
        if arguments.only in (None, case.name):
            make(case, arguments.out)


if __name__ == "__main__":
    main()
