#!/usr/bin/env python3
"""Writes the reference data of the video tests: tiny synthetic clips, and the frames that PyAV reads from them.

    make_video_goldens.py          (needs av and numpy; see tests/image/data/SOURCES.md for the versions)

tests/image/data/    clips and videos.json: for each clip, the frame rate and the CRC-32 of each frame's RGB planes.
"""
import fractions
import json
import pathlib
import zlib

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/image/data"


def draw(number: int, height: int, width: int) -> np.ndarray:
    """Draws a gradient with a moving disc."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    image = np.stack([255 * x / width, 255 * y / height, 127 + 127 * np.sin((x + y + 3 * number) / 7)], axis=-1)
    image[np.hypot(y - height / 2, x - 4 * number - 8) < height / 4] = (240, 30, 60)
    return image.astype(np.uint8)


def write(name: str, codec: str, size: tuple[int, int], frames: int, rate: fractions.Fraction, options: dict,
          colorspace: Colorspace = Colorspace.ITU601, full_range: bool = False) -> None:
    width, height = size
    with av.open(str(DATA / name), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.colorspace = colorspace
        stream.codec_context.color_range = ColorRange.JPEG if full_range else ColorRange.MPEG
        for number in range(frames):
            image = av.VideoFrame.from_ndarray(draw(number, height, width), format="rgb24")
            frame = image.reformat(format="yuv420p", dst_colorspace=colorspace,
                                     dst_color_range=ColorRange.JPEG if full_range else ColorRange.MPEG)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def read(name: str) -> dict:
    with av.open(str(DATA / name)) as container:
        rate = container.streams.video[0].average_rate
        planes = [frame.to_ndarray(format="rgb24").transpose(2, 0, 1) for frame in container.decode(video=0)]
    return {"file": name, "fps": float(rate),
            "frames": [f"{zlib.crc32(np.ascontiguousarray(frame).tobytes()):08x}" for frame in planes]}


def main() -> None:
    film = fractions.Fraction(24000, 1001)
    x264 = {"g": "8", "bf": "2", "crf": "30"}
    write("bt709.mp4", "libx264", (64, 48), 20, film, x264, Colorspace.ITU709)
    write("bt601_full_range.mp4", "libx264", (50, 38), 10, fractions.Fraction(25), x264, full_range=True)
    write("mpeg4.avi", "mpeg4", (64, 48), 12, fractions.Fraction(15), {"g": "5"})
    write("vp9.webm", "libvpx-vp9", (64, 48), 12, fractions.Fraction(30), {"crf": "40"})
    clips = [read(name) for name in ("bt709.mp4", "bt601_full_range.mp4", "mpeg4.avi", "vp9.webm")]
    (DATA / "videos.json").write_text(json.dumps(clips, indent=1) + "\n")


if __name__ == "__main__":
    main()
