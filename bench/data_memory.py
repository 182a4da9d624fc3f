"""Measures the loader's resident memory over time on data sets that exceed it: a JSON Lines file of 2 GB, and folders
of shards of 5 GB as Parquet and as WebDataset tars.

    cmake --build --preset release --target stream_data
    python bench/data_memory.py [--program build/release/stream_data] [--folder DIR] [--scale 1.0] [--samples 20000]

Writes the data to --folder (default: a temporary folder; about 12 GB) with pyarrow. Each figure comes from its own
process, which opens the data set and reads records in random order on two threads, without decoding images. Formats
with blocks are read block by block.
"""

import argparse
import io
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

IMAGE_BYTES = 100_000
SHARD_BYTES = 500_000_000
ROWS_IN_GROUP = 500


NOISE = random.Random(0).randbytes(2 * IMAGE_BYTES)


def source_image(number):
    """Returns noise of an image's size, different for each number; nothing decodes it."""
    return b"\xff\xd8\xff\xe0" + NOISE[number % IMAGE_BYTES :][: IMAGE_BYTES]


def make_lines(file, total):
    words = NOISE[:450].hex()
    with open(file, "w", buffering=1 << 22) as out:
        for number in range(int(total / (len(words) + 70))):
            out.write(f'{{"id": "r{number}", "question": "{words}", "answer": "The number {number}."}}\n')


def make_tars(folder, total):
    folder.mkdir()
    per_shard = SHARD_BYTES // IMAGE_BYTES
    for shard in range(max(1, int(total // SHARD_BYTES))):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as tar:
            for number in range(per_shard):
                record = json.dumps({"question": f"What is {number}?", "answer": "A picture."}).encode()
                for name, content in ((f"{shard}-{number}.jpg", source_image(number)), (f"{shard}-{number}.json", record)):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def make_parquet(folder, total):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("question", pa.string()), ("answer", pa.string())])
    per_shard = SHARD_BYTES // IMAGE_BYTES
    for shard in range(max(1, int(total // SHARD_BYTES))):
        with pq.ParquetWriter(folder / f"train-{shard:05}.parquet", schema, compression="none", use_dictionary=False) as writer:
            for first in range(0, per_shard, ROWS_IN_GROUP):
                rows = [{"image": {"bytes": source_image(n), "path": f"{n}.jpg"}, "question": f"What is {n}?", "answer": "A picture."}
                        for n in range(first, min(first + ROWS_IN_GROUP, per_shard))]
                writer.write_table(pa.Table.from_pylist(rows, schema))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/release/stream_data")
    parser.add_argument("--folder")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--samples", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(exist_ok=True)
        sets = {"lines.jsonl": (make_lines, 2e9), "parquet": (make_parquet, 5e9), "tars": (make_tars, 5e9)}
        print("| data | GB on disk | records | opened in s | MB resident: opened | after each tenth of the reads | most | records/s |")
        print("|---|---|---|---|---|---|---|---|")
        for name, (make, total) in sets.items():
            path = folder / name
            if not path.exists():
                make(path, total * arguments.scale)
            size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir())) / 1e9
            result = subprocess.run([arguments.program, path, str(arguments.samples)], check=True, stdout=subprocess.PIPE, text=True)
            measurements = json.loads(result.stdout)
            over_time = " ".join(f"{mb:.0f}" for mb in measurements["resident_mb"])
            print(f"| {name} | {size:.1f} | {measurements['records']:,} | {measurements['open_seconds']:.2f} | {measurements['opened_mb']:.0f} "
                  f"| {over_time} | {measurements['most_mb']:.0f} | {measurements['records_per_second']:.0f} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
