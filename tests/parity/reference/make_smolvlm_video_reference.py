"""Makes the case smolvlm_video of ../data, and ../../models/data/smolvlm_videos.json: python make_smolvlm_video_reference.py

The case's files are those of make_reference.py; a video is a folder of PNG frames under images/. The other file has frames that
transformers takes of videos, their time stamps, and its words for numbers.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from num2words import num2words
from transformers import AutoProcessor
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata

from library import checkpoints
from library import llava
from library import thin
from library import training
from library.cases import Case, sample
from library.checkpoints import Shape
from library.internvl_format import content_blocks
from make_llava_reference import summary
from make_qwen_reference import MOVING, WORDS, with_video, write_inputs
from make_reference import NEW_TOKENS, SMALLEST_LEAD, describe, expected_tensors
from library.qwen_format import FRAMES_PER_SECOND, moved, read_frames

LAYOUTS = Path(__file__).resolve().parents[2] / "models" / "data" / "smolvlm_videos.json"
AGAIN = with_video(sample("again", [], "<video>\nIs there a ball?", "Yes.", "Which colour is the ball?", "It is red."), "door")
CASE = Case(
    name="smolvlm_video",
    about="SmolVLM2's videos, files as published: one of them long enough that its first and last second are left out",
    shape=Shape(
        model_type="smolvlm", seed=16, tie_embeddings=True, key_value_heads=1,
        video_sampling={"fps": 1, "max_frames": 2, "video_size": {"longest_edge": 32}},
    ),
    samples=[MOVING, WORDS, AGAIN],
    generate="moving",
)
# Frames, frames per second, requested frames per second, maximum frames.
VIDEOS = [
    (300, 30, 1, 64), (3000, 30, 1, 64), (3000, 29.97, 1, 64), (100000, 25, 1, 64), (10, 2, 1, 2), (5, 2, 1, 2), (1, 25, 1, 64),
    (7, 25, 1, 64), (2500, 24, 0.5, 10), (75, 30, 1, 64), (105, 30, 1, 64), (9000, 60, 1, 128), (108000, 30, 1, 8), (90, 30, 1, 1),
]
NUMBERS = [*range(1, 131), 199, 200, 201, 210, 345, 500, 512, 768, 900, 999]


def frames(total, fps, expected, most):
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    indices = SmolVLMVideoProcessor().sample_frames(metadata, num_frames=most, fps=expected)
    return {"video": [total, fps, expected, most], "indices": indices.tolist()}


def write_layouts():
    content = {"frames": [frames(*video) for video in VIDEOS], "numbers": [[number, num2words(number)] for number in NUMBERS]}
    lines = ",\n".join(f'"{key}": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]" for key, cases in content.items())
    LAYOUTS.write_text("{\n" + lines + "\n}\n")


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
        {"role": llava.ROLES[turn["from"]], "content": content_blocks(turn["value"])} for turn in record["conversations"][:turns]
    ]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=bool(turns))
    videos = [read_frames(root / record["video"])] if "video" in record else []
    more, texts = {}, []
    for video in videos:
        described = {
            "fps": FRAMES_PER_SECOND, "total_num_frames": len(video), "duration": len(video) / FRAMES_PER_SECOND,
            "width": video.shape[3], "height": video.shape[2],
        }
        more = {"videos": [[video]], "video_metadata": [[described]], "do_sample_frames": True}
        sampling = shape.video_sampling
        indices = frames(len(video), FRAMES_PER_SECOND, sampling["fps"], sampling["max_frames"])["indices"]
        texts.append(video_text(indices, len(video), processor.image_seq_len))
    batch = processor(text=[prompt], return_tensors="pt", **more)
    marked, spans = llava.render([message | {"content": marks(message["content"])} for message in messages], ["<video>"] * len(videos))
    marked += "Assistant:" if turns else ""
    assert marked == prompt, "the chat template differs from the format"
    full = prompt.replace("<video>", texts[0]) if texts else prompt
    own = processor.tokenizer(full, return_offsets_mapping=True)
    assert own["input_ids"] == batch["input_ids"][0].tolist(), "the processor differs from the format"
    return llava.Encoded(
        input_ids=batch["input_ids"][0],
        label_mask=llava.mask_of_spans(own["offset_mapping"], moved(spans, marked, full, "Assistant:")),
        pixel_values=batch["pixel_values"][0] if videos else None,
        pixel_attention_mask=batch["pixel_attention_mask"][0] if videos else None,
        grids=[(len(batch["pixel_values"][0]), 1) for _ in videos],
        text=prompt,
    )


def marks(content):
    """Returns the content with <video> texts in place of videos, as llava.render() expects."""
    return [{"type": "text", "text": "<video>"} if block["type"] == "video" else block for block in content]


def make(case, out):
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    checkpoint = folder / "checkpoint"
    checkpoints.write(case.shape, checkpoint)
    (checkpoint / case.shape.chat_template_file).write_text(DEFAULT_CHAT_TEMPLATE)
    write_inputs(case, folder)
    processor = AutoProcessor.from_pretrained(checkpoint)
    samples = [encode(processor, case.shape, record, folder / "images") for record in case.samples]
    single = training.run(checkpoint, samples, torch.float32)
    double = training.run(checkpoint, samples, torch.float64)
    question = next(record for record in case.samples if record["id"] == case.generate)
    prompt = encode(processor, case.shape, question, folder / "images", turns=1)
    new_ids, lead = training.generate(checkpoint, training.forward_inputs(prompt, torch.float32), NEW_TOKENS)
    assert len(new_ids) == NEW_TOKENS and lead > SMALLEST_LEAD, f"choose another seed: {len(new_ids)} tokens, a lead of {lead}"
    tensors = expected_tensors(samples, single) | {"loss_float64": double.loss}
    tensors |= {"generation.prompt_ids": prompt.input_ids, "generation.new_ids": new_ids}
    thin.save(tensors, folder / "expected.safetensors")
    description = describe(case, samples, single) | {"deviation": summary(single, double)}
    (folder / "case.json").write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
    print(case.name, json.dumps(description["deviation"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    write_layouts()
    make(CASE, arguments.out)


if __name__ == "__main__":
    main()
