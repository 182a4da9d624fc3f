#!/usr/bin/env python3
"""Writes tests/io/data/*.parquet: the layouts of data sets in Parquet, a few rows each, with texts in place of pictures;
and mixed_batch.parquet, the records of the parity case of that name with their pictures.

    make_parquet_goldens.py        (needs pyarrow; tests/io/data/SOURCES.md says which)
"""
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent.parent / "tests/io/data"


def picture(name):
    return {"bytes": f"picture {name}".encode(), "path": f"{name}.png"}


def write(name, columns, rows, **options):
    table = pa.Table.from_pylist(rows, pa.schema(columns))
    options = {"row_group_size": 2, "compression": "none", "write_page_checksum": True, **options}
    pq.write_table(table, FOLDER / f"{name}.parquet", **options)


IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

write(
    "cauldron",
    [
        ("images", pa.list_(IMAGE)),
        ("texts", pa.list_(pa.struct([("user", pa.string()), ("assistant", pa.string()), ("source", pa.string())]))),
    ],
    [
        {
            "images": [picture(f"{row}{letter}") for letter in "ab"[: 1 + row % 2]],
            "texts": [{"user": f"Q{row}.{i}", "assistant": f"A{row}.{i}", "source": "s"} for i in range(1 + row % 3)],
        }
        for row in range(5)
    ],
)
write(
    "messages",
    [
        ("id", pa.int64()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("images", pa.large_list(pa.binary())),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
    ],
    [
        {
            "id": 10 + row,
            "messages": [{"role": "user", "content": "<image> Q"}, {"role": "assistant", "content": f"A{row}"}],
            "images": [f"picture {row}".encode()],
            "kind": "even" if row % 2 == 0 else "odd",
        }
        for row in range(3)
    ],
    compression="zstd",
)
write(
    "questions",
    [
        ("image", IMAGE),
        ("question", pa.string()),
        ("answer", pa.float64()),
        ("left", pa.string()),
        ("when", pa.timestamp("s")),
        ("more", pa.map_(pa.string(), pa.int8())),
    ],
    [
        {"image": {"bytes": None, "path": "on/disk.png"}, "question": "Q0", "answer": 1.5, "left": "L", "when": 0, "more": [("a", 1)]},
        {"image": None, "question": "Q1", "answer": None, "left": None, "when": None, "more": None},
    ],
    compression="snappy",
)
write("strangers", [("a", pa.int32()), ("b", pa.string())], [{"a": 1, "b": "x"}])


def mixed_batch():
    """The eleven records of tests/e2e/command.h."""
    case = FOLDER.parent.parent / "parity/data/mixed_batch"
    samples = json.loads((case / "conversations.json").read_text())
    rows = []
    for number in range(11):
        sample = samples[number % len(samples)]
        names = sample.get("image", [])
        rows.append({
            "id": f"sample-{number}",
            "images": [
                {"bytes": (case / "images" / name).read_bytes(), "path": name}
                for name in ([names] if isinstance(names, str) else names)
            ],
            "conversations": sample["conversations"],
        })
    return rows


TURNS = pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))
write("mixed_batch", [("id", pa.string()), ("images", pa.list_(IMAGE)), ("conversations", TURNS)], mixed_batch(),
      row_group_size=4, compression="zstd")
