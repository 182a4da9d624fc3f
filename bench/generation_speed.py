"""Compares generation speed with a key-value cache, without one, and in transformers.

    python bench/generation_speed.py --vlmtrain build/release/vlmtrain

A random small model (`vlmtrain init --preset smolvlm-tiny`) in float32 on the CPU generates greedily for one prompt with an image. The
three alternate, --rounds times. vlmtrain is a new process each time and reports its own time, from the image's pixels to the last token,
first-use costs included. transformers (its own cache, SDPA) is warm: its first answer is not counted. All three must produce the same
tokens. Compare the ratios; the seconds depend on the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "parity" / "reference" / "library"))

QUESTION = "What is shown in this picture? Is there anything in it that a careful reader of pictures would call unusual?"


def ours(arguments, checkpoint, image, environment, *flags):
    command = [
        str(arguments.vlmtrain), "generate", "--checkpoint", str(checkpoint), "--image", str(image), "--prompt", QUESTION,
        "--max-new-tokens", str(arguments.tokens), "--device", "cpu", "--json", *flags,
    ]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


class Peer:
    def __init__(self, checkpoint, image, threads):
        import torch
        from PIL import Image
        from transformers import AutoModelForImageTextToText, AutoProcessor

        torch.set_num_threads(threads)
        processor = AutoProcessor.from_pretrained(checkpoint)
        self.model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        self.inputs = processor(text=[text], images=[[Image.open(image)]], return_tensors="pt")

    def answer(self, tokens):
        began = time.perf_counter()
        ids = self.model.generate(**self.inputs, do_sample=False, max_new_tokens=tokens)
        seconds = time.perf_counter() - began
        new_ids = ids[0, self.inputs["input_ids"].shape[1] :].tolist()
        return {"token_ids": new_ids, "tokens_per_second": len(new_ids) / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", default="1", help="of the model's weights")
    arguments = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads), "OMP_WAIT_POLICY": "passive"}
    os.environ |= {"OMP_NUM_THREADS": str(arguments.threads), "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}

    import test_images

    with tempfile.TemporaryDirectory() as scratch:
        checkpoint, image = Path(scratch) / "model", Path(scratch) / "picture.png"
        init = [str(arguments.vlmtrain), "init", "--preset", "smolvlm-tiny", "--out", str(checkpoint), "--seed", arguments.seed]
        subprocess.run(init, check=True, capture_output=True)
        test_images.save(test_images.draw(320, 240, 1, "RGB"), image)
        peer = Peer(checkpoint, image, arguments.threads)
        peer.answer(8)
        rounds = []
        for _ in range(arguments.rounds):
            results = {
                "cache": ours(arguments, checkpoint, image, environment),
                "no cache": ours(arguments, checkpoint, image, environment, "--no-cache"),
                "transformers": peer.answer(arguments.tokens),
            }
            answers = {name: result["token_ids"] for name, result in results.items()}
            if len(answers["cache"]) != arguments.tokens:
                sys.exit(f"the answer ended after {len(answers['cache'])} tokens: choose another --seed")
            if not answers["cache"] == answers["no cache"] == answers["transformers"]:
                sys.exit(f"the answers differ: {answers}")
            rounds.append({name: result["tokens_per_second"] for name, result in results.items()})
        prompt_tokens = results["cache"]["prompt_tokens"]

    print(f"prompt of {prompt_tokens} tokens, answer of {arguments.tokens}, {arguments.threads} threads, {arguments.rounds} rounds\n")
    print("| | tokens/s (median) | with cache / this (median of rounds; least, most) |\n|---|---|---|")
    for name in rounds[0]:
        ratios = [one["cache"] / one[name] for one in rounds]
        spread = "" if name == "cache" else f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        label = name if name == "transformers" else f"vlmtrain, {name}"
        print(f"| {label} | {statistics.median(one[name] for one in rounds):.0f} | {spread} |")


if __name__ == "__main__":
    main()
