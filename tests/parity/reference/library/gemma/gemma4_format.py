"""A conversation for Gemma 4: text as its chat template writes it, token ids, the label mask, patches.

Labels are the answer and <turn|>.
"""

import re

import torch

from library.conversation import IMAGE_MARK, Encoded, join, label_mask, process

IMAGE, VIDEO = "<|image|>", "<|video|>"
START, END = "<|image>", "<image|>"


def words(turn):
    """The template writes the texts around images and videos without their outer white space."""
    pieces = re.split("(<image>|<video>)", turn)
    return "".join({IMAGE_MARK: IMAGE, "<video>": VIDEO}.get(piece, piece.strip()) for piece in pieces)


def render(turns, media):
    """The text with media[i] in place of the i-th image or video, and the character spans of the answers."""
    media, result = iter(media), []
    for index, turn in enumerate(turns):
        text = re.sub(r"<\|(image|video)\|>", lambda _: next(media), words(turn))
        if index % 2 == 0:
            result.append((f"<|turn>user\n{text}<turn|>\n<|turn>model\n", False))
        else:
            result += [(f"{text}<turn|>", True), ("\n", False)]
    return join(result)


def frame_text(mark, tokens):
    return START + mark * tokens + END


def patches_in_order(pixels, positions, side, pooling):
    """Patches of one image without padding, token by token: [patches, 3, side, side], and the grid."""
    valid = (positions != -1).all(-1)
    columns, rows = (int(values.max()) + 1 for values in positions[valid].T)
    patches = pixels[valid].view(rows, columns, side, side, 3)
    tokens = patches.view(rows // pooling, pooling, columns // pooling, pooling, side, side, 3).transpose(1, 2)
    # transformers multiplies bytes by 1/255, vlmtrain divides them by 255, so bytes are compared.
    pixels = (tokens.reshape(-1, side, side, 3).permute(0, 3, 1, 2) * 255).round() / 255
    return pixels, (rows, columns)


def encode(processor, shape, sample, root, turns=None, *, is_unified):
    """With `turns`: only so many, and the generation prompt."""
    texts = [turn["value"] for turn in sample["conversations"]][:turns]
    kinds = re.findall(r"<(image|video)>", "".join(texts))
    text, _ = render(texts, [f"<|{kind}|>" for kind in kinds])
    more = {"return_metadata": True, "fps": None} if "video" in kinds else {}
    inputs, _, _ = process(processor, text, sample, root, {"image": IMAGE, "video": VIDEO}, **more)
    metadata = inputs.pop("video_metadata", [])
    ids = inputs.pop("input_ids")[0]
    inputs.pop("attention_mask")
    side, pooling = shape.vision["patch_size"], shape.vision["pooling_kernel_size"]
    if is_unified:
        side, pooling = side * pooling, 1

    images, frames = [
        [patches_in_order(*pair, side, pooling) for pair in zip(inputs[pixels], inputs[positions])] if pixels in inputs else []
        for pixels, positions in (("pixel_values", "image_position_ids"), ("pixel_values_videos", "video_position_ids"))
    ]
    frame_counts = inputs.get("num_frames_per_video", torch.zeros(0, dtype=torch.long)).tolist()
    patches, grids, media = [], [], []
    for kind in kinds:
        if kind == "image":
            rows, (height, width) = images.pop(0)
            patches.append(rows)
            grids.append((1, height, width))
            media.append(frame_text(IMAGE, height * width // pooling**2))
            continue
        count, video = frame_counts.pop(0), metadata.pop(0)
        used, frames = frames[:count], frames[count:]
        patches += [rows for rows, _ in used]
        height, width = used[0][1]
        grids.append((count, height, width))
        stamps = [f"{int(time // 60):02d}:{int(time % 60):02d}" for time in video.timestamps]
        media.append(" ".join(f"{stamp} {frame_text(VIDEO, height * width // pooling**2)}" for stamp in stamps))
    full, spans = render(texts, media)
    return Encoded(
        input_ids=ids,
        label_mask=label_mask(processor.tokenizer, full, spans, ids),
        pixel_values=torch.cat(patches) if patches else None,
        grids=grids,
        text=text,
        model_inputs={name: value for name, value in inputs.items() if torch.is_tensor(value)},
    )
