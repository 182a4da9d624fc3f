"""A conversation for Qwen2-VL, Qwen2.5-VL, Qwen3-VL or Qwen3.5: text as its chat template writes it, token ids, the label mask, patches.

Labels are the answer and <|im_end|>.
"""

import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

from library import qwen_checkpoints
from library.conversation import Encoded, chatml, label_mask, moved, process

IMAGE, VIDEO = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
MARKS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}


@dataclass
class QwenEncoded(Encoded):
    """position_ids: [3, tokens]."""

    position_ids: torch.Tensor | None = None


def with_marks(turn):
    """LLaVA's data has a line break after each mark that opens a turn; the chat template's blocks do not."""
    turn = re.sub(r"^(?:<(?:image|video)>\n)+", lambda opening: opening[0].replace("\n", ""), turn)
    return turn.replace("<image>", IMAGE).replace("<video>", VIDEO)


def stamped_frames(mark, grid, metadata, merge):
    """Returns the tokens of a video in Qwen3-VL, written here from the definition: the mean time before each pair of frames."""
    times = [index / metadata.fps for index in metadata.frames_indices]
    times += times[-1:] * (len(times) % 2)
    frame = "<|vision_start|>" + mark * (int(grid[1] * grid[2]) // merge**2) + "<|vision_end|>"
    assert len(times) == 2 * grid[0]
    return "".join(f"<{(first + second) / 2:.1f} seconds>{frame}" for first, second in zip(times[::2], times[1::2]))


def expanded(text, inputs, merge, metadata=None):
    """The marks as many times as there are tokens, written here from the definition. metadata: of Qwen3-VL's videos."""
    for mark, grids in (("<|image_pad|>", inputs.get("image_grid_thw", [])), ("<|video_pad|>", inputs.get("video_grid_thw", []))):
        pieces = text.split(mark)
        assert len(pieces) == len(grids) + 1
        if mark == "<|video_pad|>" and metadata is not None:
            longer = [stamped_frames(mark, grid, video, merge) for grid, video in zip(grids, metadata)]
        else:
            longer = [mark * (int(t * h * w) // merge**2) for t, h, w in grids]
        text = "".join(piece + tokens for piece, tokens in zip(pieces, longer + [""]))
    return text


def patches_in_order(sample_text, inputs, shape):
    """Patches of images and videos as they come in the text: [patches, 3, frames · side, side], frames one above the other."""
    sources = {
        kind: (
            inputs[pixels].split([int(grid.prod()) for grid in inputs[grids]]) if pixels in inputs else (),
            inputs.get(grids, []),
        )
        for kind, pixels, grids in (("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw"))
    }
    order = re.findall(r"<\|(image|video)_pad\|>", sample_text)
    next_of = {"image": 0, "video": 0}
    patches, grids = [], []
    for kind in order:
        patches.append(sources[kind][0][next_of[kind]])
        grids.append(tuple(sources[kind][1][next_of[kind]].tolist()))
        next_of[kind] += 1
    side = shape["patch_size"]
    return torch.cat(patches).view(-1, 3, shape["temporal_patch_size"] * side, side) if patches else None, grids


def as_released(rope_index):
    """get_rope_index as before transformers 5.3: what follows an image or video goes on after the largest position on any axis.

    Runs of one kind of token (text, image, video) are moved as a whole to where the one before them ends.
    """

    def find(self, input_ids, mm_token_type_ids, **grids):
        positions, _ = rope_index(self, input_ids, mm_token_type_ids=mm_token_type_ids, **grids)
        assert len(input_ids) == 1
        lengths = torch.unique_consecutive(mm_token_type_ids[0], return_counts=True)[1].tolist()
        moved, following = [], 0
        for run in positions.split(lengths, dim=-1):
            moved.append(run - run[..., :1] + following)
            following = moved[-1].max() + 1
        moved = torch.cat(moved, dim=-1)
        return moved, (moved.max() + 1 - input_ids.shape[1]).view(1, 1)

    return find


@contextmanager
def video_layout(name):
    """`released` or `transformers5`: the value of data.video_layout that the models of this module then follow."""
    with ExitStack() as patches:
        if name == "released":
            for model in (Qwen2VLModel, Qwen2_5_VLModel):
                patches.enter_context(mock.patch.object(model, "get_rope_index", as_released(model.get_rope_index)))
        yield


def positions(model, ids, inputs):
    """get_rope_index, or one axis for all where there is nothing to see."""
    if "image_grid_thw" not in inputs and "video_grid_thw" not in inputs:
        return torch.arange(len(ids)).expand(3, -1).contiguous()
    names = ("mm_token_type_ids", "image_grid_thw", "video_grid_thw") + (
        ("second_per_grid_ts",) if "second_per_grid_ts" in inputs and model.config.model_type == "qwen2_5_vl" else ()
    )
    result, _ = model.model.get_rope_index(ids[None], **{name: inputs[name] for name in names if name in inputs})
    return result[:, 0]


def without_video_wrapper(text, spans):
    """The same text with VIDEO's middle token alone, and where the answers, which hold none, are then."""
    shorter = text.replace(VIDEO, "<|video_pad|>")
    return shorter, moved(spans, text, shorter)


def encode(processor, shape, sample, root, turns=None, *, model):
    """With `turns`: only so many, and the generation prompt."""
    is_qwen3 = qwen_checkpoints.is_qwen3(shape)
    texts = [turn["value"] for turn in sample["conversations"]][:turns]
    texts[::2] = map(with_marks, texts[::2])
    text, spans = chatml(texts, "" if is_qwen3 else "You are a helpful assistant.")
    if is_qwen3 and shape.video_layout == "released":  # the processor of then put the frames in place of all three tokens
        text, spans = without_video_wrapper(text, spans)
    more = {"return_metadata": True} if MARKS["video"] in text else {}
    inputs, _, _ = process(processor, text, sample, root, MARKS, **more)
    metadata = inputs.pop("video_metadata", [])
    ids = inputs.pop("input_ids")[0]
    inputs.pop("attention_mask")
    full = expanded(text, inputs, shape.vision["spatial_merge_size"], metadata if is_qwen3 else None)
    pixels, grids = patches_in_order(text, inputs, shape.vision)
    tensors = {name: value for name, value in inputs.items() if torch.is_tensor(value)}
    return QwenEncoded(
        input_ids=ids,
        label_mask=label_mask(processor.tokenizer, full, moved(spans, text, full), ids),
        pixel_values=pixels,
        grids=grids,
        text=text,
        model_inputs=tensors,
        position_ids=positions(model, ids, tensors),
    )
