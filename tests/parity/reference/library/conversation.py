"""What the formats of conversations share: the sample as transformers sees it, ChatML, label masks, images and videos.

A video is a folder of frames, taken as sampled at FRAMES_PER_SECOND.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

FRAMES_PER_SECOND = 2.0
IMAGE_MARK = "<image>"
ROLES = {"human": "user", "gpt": "assistant"}


@dataclass
class Encoded:
    """One sample: input_ids and label_mask [tokens], pixel_values [tiles, 3, side, side] or None without images.

    model_inputs: the inputs of the model in addition to input_ids; not given: pixel_values.
    """

    input_ids: torch.Tensor
    label_mask: torch.Tensor
    pixel_values: torch.Tensor | None
    grids: list[tuple[int, int]] = ()
    text: str = ""
    model_inputs: dict | None = None

    def __post_init__(self):
        if self.model_inputs is None:
            self.model_inputs = {} if self.pixel_values is None else {"pixel_values": self.pixel_values}


def join(pieces):
    """Returns the text of (text, whether it is an answer), and the character spans of the answers."""
    text, spans = "", []
    for piece, is_answer in pieces:
        if is_answer:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    return text, spans


def chatml(turns, system=""):
    """Returns the text, with the generation prompt if the last turn is the user's, and the character spans of the answers."""
    pieces = [(f"<|im_start|>system\n{system}<|im_end|>\n", False)] if system else []
    for index, turn in enumerate(turns):
        if index % 2 == 0:
            pieces.append((f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n", False))
        else:
            pieces += [(f"{turn}<|im_end|>", True), ("\n", False)]
    return join(pieces)


def mask_of_spans(offsets, spans):
    mask = []
    for begin, end in offsets:
        inside = [start <= begin and end <= stop for start, stop in spans]
        touching = [begin < stop and end > start for start, stop in spans]
        assert inside == touching, f"the token at {begin}:{end} crosses the border of an answer"
        mask.append(any(inside))
    return torch.tensor(mask)


def label_mask(tokenizer, text, spans, ids):
    """Returns the mask of the tokens of the text, which must be those of the processor."""
    own = tokenizer(text, return_offsets_mapping=True)
    assert own["input_ids"] == ids.tolist(), "the processor differs from the format"
    return mask_of_spans(own["offset_mapping"], spans)


def moved(spans, text, longer, opening="<|im_start|>assistant\n"):
    """Where the answers are once the marks are expanded: they hold none, so they are found one after the other."""
    result, place = [], 0
    for begin, end in spans:
        answer = text[begin:end]
        begin = longer.index(opening + answer, place) + len(opening)
        place = begin + len(answer)
        result.append((begin, place))
    return result


def paths(sample, key, root):
    names = sample.get(key, [])
    return [Path(root) / name for name in ([names] if isinstance(names, str) else names)]


def image_paths(sample, root):
    return paths(sample, "image", root)


def read_frames(folder):
    """uint8 [frames, 3, height, width]"""
    files = sorted(folder.iterdir())
    return torch.from_numpy(np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])).permute(0, 3, 1, 2)


def process(processor, text, sample, root, marks, **more):
    """Returns what the processor makes of the text and of the images and videos whose marks it has, the images and the videos.

    more: arguments of the processor, which replace those of this function.
    """
    images = [Image.open(path).convert("RGB") for path in image_paths(sample, root)[: text.count(marks["image"])]]
    videos = [read_frames(path) for path in paths(sample, "video", root)[: text.count(marks["video"])]]
    if videos:
        described = [
            {"fps": FRAMES_PER_SECOND, "total_num_frames": len(video), "width": video.shape[3], "height": video.shape[2],
             "frames_indices": list(range(len(video)))}
            for video in videos
        ]
        more = {"videos": [videos], "video_metadata": [described], "do_sample_frames": True, "fps": FRAMES_PER_SECOND} | more
    return dict(processor(text=[text], images=images or None, return_tensors="pt", **more)), images, videos
