#!/usr/bin/env python3
"""Writes tests/io/data/*.parquet: the layouts of data sets in Parquet, a few rows each, with texts instead of images;
and mixed_batch.parquet, the records of the parity case of that name with their images.

    make_parquet_goldens.py        (needs pyarrow; tests/io/data/SOURCES.md has the version)
"""
import decimal
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent.parent / "tests/io/data"


def source_image(name):
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
            "images": [source_image(f"{row}{letter}") for letter in "ab"[: 1 + row % 2]],
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
    """Returns the eleven records of tests/e2e/command.h."""
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


def extension(storage_type, values, of):
    return pa.ExtensionArray.from_storage(of, pa.array(values, storage_type))


def write_table(name, **columns):
    pq.write_table(pa.table(columns), FOLDER / f"{name}.parquet", compression="none")


# Types that encode the same values: each row is the same record.
TURN_TEXTS = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
SOURCE_IMAGE = [b"picture 0", b"picture 1"]
write_table(
    "views",
    image=pa.array(SOURCE_IMAGE, pa.binary_view()),
    question=pa.array(["Q0", "Q1"], pa.string_view()),
    answer=pa.array(["A0", "A1"]).dictionary_encode(),
    subject_id=pa.array([["s", "t"], None], pa.list_view(pa.string())),
    texts=pa.array(
        [[{"user": "Q2", "assistant": "A2"}], None],
        pa.large_list_view(pa.struct([("user", pa.string()), ("assistant", pa.string())])),
    ),
)
write_table(
    "json_columns",
    id=extension(pa.string(), ['"text"', "3", "null"], pa.json_(pa.string())),
    messages=extension(pa.large_string(), [json.dumps(TURN_TEXTS)] * 2 + ['[{"role": '], pa.json_(pa.large_string())),
    # Within lists and structs, as `datasets` writes turns of several shapes.
    images=pa.array([[{"path": "a.png"}]] * 3, pa.list_(pa.struct([("path", pa.string())]))),
)
write_table(
    "json_contents",
    messages=pa.ListArray.from_arrays(
        [0, 2, 4],
        pa.StructArray.from_arrays(
            [
                pa.array(["user", "assistant"] * 2),
                extension(pa.string(), ['"Q"', '[{"type": "text", "text": "A"}]', "1.5", '"B"'], pa.json_(pa.string())),
            ],
            ["role", "content"],
        ),
    ),
)
write_table(
    "values",
    question=pa.array([1.5, None], pa.float16()),
    answer=pa.array([decimal.Decimal("12.50"), None], pa.decimal128(10, 2)),
    id=pa.array([b"0123456789abcdef", None], pa.uuid()),
    task=pa.array([1, None], pa.date32()),
    kind=extension(pa.int8(), [1, None], pa.bool8()),
    left=pa.array([[("a", 1), ("b", 2)], None], pa.map_(pa.string(), pa.int8())),
    none=pa.array([None, None], pa.null()),
    length=pa.array([5, None], pa.duration("s")),
)
write_table("durations", question=pa.array(["Q"]), answer=pa.array([5], pa.duration("ms")))
write_table("tensors", question=pa.array(["Q"]),
            answer=extension(pa.list_(pa.int8(), 4), [[1, 2, 3, 4]], pa.fixed_shape_tensor(pa.int8(), [2, 2])))
# The result of pycocotools, and the other forms of counts.
SIZE = [4, 4]
write_table(
    "run_lengths",
    image=pa.array(["a.png"]),
    question=pa.array(["Q"]),
    answer=pa.array(["A"]),
    mask=pa.array([{"size": SIZE, "counts": b"`0"}], pa.struct([("size", pa.list_(pa.int64())), ("counts", pa.binary())])),
)
# Images in the row, by path, and none, with and without a name; one row group per mixture.
write(
    "some_images",
    [("id", pa.string()), ("image", IMAGE), ("question", pa.string()), ("answer", pa.string())],
    [
        {"id": name, "image": image, "question": "Q", "answer": "A"}
        for name, image in [
            ("bytes", {"bytes": b"picture 0", "path": None}), ("named bytes", source_image("b")),
            ("path", {"bytes": None, "path": "a.png"}), ("none", None),
            ("again", source_image("c")), ("path again", {"bytes": None, "path": "d.png"}),
        ]
    ],
)
# A list of images under "video" is one video; their bytes identify them.
write(
    "frames",
    [("video", pa.list_(IMAGE)), ("question", pa.string()), ("answer", pa.string())],
    [{"video": [{"bytes": b"\x89PNG 0", "path": None}, {"bytes": b"\xff\xd8\xff 1", "path": None}], "question": "Q", "answer": "A"}],
)
