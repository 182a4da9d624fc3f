#!/usr/bin/env python3
"""Writes tests/report/data/tensorboard/events.golden with TensorBoard's own messages and framing, and reads it back with
its accumulator. tests/report/tensorboard_test.cpp must write the same bytes.

    python3 -m venv VENV && VENV/bin/pip install tensorboard==2.21.0 && VENV/bin/python scripts/make_tensorboard_golden.py
"""
import math
import pathlib
import shutil
import tempfile

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/report/data/tensorboard"
IMAGE = b"\xff\xd8 not a picture, but bytes \x00\xff"


def text_value(tag: str, text: str) -> summary_pb2.Summary.Value:
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    return summary_pb2.Summary.Value(
        tag=tag, metadata=summary_pb2.SummaryMetadata(plugin_data=plugin),
        tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, tensor_shape=shape, string_val=[text.encode()]))


def scalars(**values: float) -> summary_pb2.Summary:
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag.replace("__", "/"), simple_value=value)
                                      for tag, value in sorted(values.items())])


def events() -> list[event_pb2.Event]:
    image = summary_pb2.Summary.Image(height=120, width=160, colorspace=3, encoded_image_string=IMAGE)
    return [
        event_pb2.Event(wall_time=1.5e9, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=1.5e9, step=1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
        event_pb2.Event(wall_time=1.5e9, summary=summary_pb2.Summary(value=[text_value("config", "a: ü\n")])),
        event_pb2.Event(wall_time=1.5e9 + 0.25, step=1, summary=scalars(train__loss=2.5, train__rate=1e-4)),
        event_pb2.Event(wall_time=1.5e9 + 0.5, step=300, summary=scalars(train__loss=math.nan)),
        event_pb2.Event(wall_time=1.5e9 + 1, step=300,
                        summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="answers/a/image 1", image=image)])),
        event_pb2.Event(wall_time=1.5e9 + 2, step=300, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
        event_pb2.Event(wall_time=1.5e9 + 3, step=300, summary=scalars(train__loss=0.5)),
        event_pb2.Event(wall_time=1.5e9 + 4, step=1 << 40, summary=scalars(train__loss=0.25)),
    ]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    golden = FOLDER / "events.golden"
    with golden.open("wb") as file:
        writer = RecordWriter(file)
        for event in events():
            writer.write(event.SerializeToString())
        writer.flush()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(golden, pathlib.Path(folder) / "events.out.tfevents.1500000000.host.1")
        read = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()
        loss = [(event.step, event.value) for event in read.Scalars("train/loss")]
        assert loss == [(1, 2.5), (300, 0.5), (1 << 40, 0.25)], loss  # the NaN of step 300 is purged
        assert read.Tensors("config")[0].tensor_proto.string_val[0].decode() == "a: ü\n"
        assert read.Images("answers/a/image 1") == [], "purged too: it is of step 300"
    print(f"{golden}: {golden.stat().st_size} bytes, read back by TensorBoard")


if __name__ == "__main__":
    main()
