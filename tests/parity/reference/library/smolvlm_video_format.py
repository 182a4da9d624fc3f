"""A conversation with a video for SmolVLM2: frames, their time stamps, and the sample as transformers sees it."""

from num2words import num2words
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata

from library.conversation import FRAMES_PER_SECOND, ROLES, moved, read_frames
from library.idefics3_format import encoded, render
from library.internvl_format import content_blocks


def frames(total, fps, expected, most):
    """Returns the frames that transformers takes of a video."""
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    return SmolVLMVideoProcessor().sample_frames(metadata, num_frames=most, fps=expected).tolist()


def video_text(indices, total, tokens):
    """Returns the tokens of a video, written here from the definition."""
    frame = f"<fake_token_around_image><global-img>{'<image>' * tokens}<fake_token_around_image>"
    seconds = [index / FRAMES_PER_SECOND for index in indices]
    stamps = [f"{int(second // 60):02d}:{int(second % 60):02d}" for second in seconds]
    duration = int(total / FRAMES_PER_SECOND)
    assert duration < 60
    intro = f"You are provided the following series of {num2words(len(indices))} frames from a 0:00:{duration:02d} [H:MM:SS] video.\n"
    return intro + "".join(f"\nFrame from {stamp}:{frame}" for stamp in stamps) + "\n\n"


def encode(processor, shape, record, root, turns=None):
    """With `turns`: only so many, and the generation prompt."""
    messages = [
        {"role": ROLES[turn["from"]], "content": content_blocks(turn["value"])} for turn in record["conversations"][:turns]
    ]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=bool(turns))
    videos = [read_frames(root / record["video"])] if "video" in record else []
    more, full = {}, prompt
    for video in videos:
        described = {
            "fps": FRAMES_PER_SECOND, "total_num_frames": len(video), "duration": len(video) / FRAMES_PER_SECOND,
            "width": video.shape[3], "height": video.shape[2],
        }
        more = {"videos": [[video]], "video_metadata": [[described]], "do_sample_frames": True}
        sampling = shape.video_sampling
        indices = frames(len(video), FRAMES_PER_SECOND, sampling["fps"], sampling["max_frames"])
        full = prompt.replace("<video>", video_text(indices, len(video), processor.image_seq_len))
    batch = processor(text=[prompt], return_tensors="pt", **more)
    marked, spans = render([message | {"content": marks(message["content"])} for message in messages], ["<video>"] * len(videos))
    marked += "Assistant:" if turns else ""
    assert marked == prompt, "the chat template differs from the format"
    grids = [(len(batch["pixel_values"][0]), 1) for _ in videos]
    return encoded(processor, batch, full, moved(spans, marked, full, "Assistant:"), grids, prompt)


def marks(content):
    """Returns the content with <video> texts in place of videos, as render() expects."""
    return [{"type": "text", "text": "<video>"} if block["type"] == "video" else block for block in content]
