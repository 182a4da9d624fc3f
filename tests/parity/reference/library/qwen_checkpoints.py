"""Writes randomly initialized Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5 checkpoints in the layouts that are met in the wild.

`hub`: the published ones (text keys at the top of config.json, weights `visual…` and `model.layers…`); `modules`: weights by the
names of transformers 5's modules, which those of Qwen3-VL and Qwen3.5 were published with; `saved`: what save_pretrained of transformers 5
writes from scratch.
"""

from dataclasses import dataclass

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from library import small_tokenizer
from library.cases import write_json
from library.idefics3_checkpoints import randomise, save_weights

SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
    "<|video_pad|>",
]
PUBLISHED_NAMES = {"model.visual.": "visual.", "model.language_model.": "model."}
PROCESSORS = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor, "qwen3_5": Qwen3VLProcessor}
VIDEO_PROCESSORS = {
    "qwen2_vl": Qwen2VLVideoProcessor, "qwen2_5_vl": Qwen2VLVideoProcessor, "qwen3_vl": Qwen3VLVideoProcessor,
    "qwen3_5": Qwen3VLVideoProcessor,
}
ARCHITECTURES = {
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
}
TEXT_TYPES = {"qwen3_vl": "qwen3_vl_text", "qwen3_5": "qwen3_5_text"}
PIXELS = {"min_pixels": 256, "max_pixels": 2560}


def is_qwen3(shape):
    """Returns whether the model has Qwen3-VL's tower and processor."""
    return shape.model_type in TEXT_TYPES


def pixel_settings(shape):
    """Returns the pixel limits of images, with the keys of the published files."""
    if not is_qwen3(shape):
        return PIXELS
    size = {"shortest_edge": PIXELS["min_pixels"], "longest_edge": PIXELS["max_pixels"]}
    return {"size": size, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


@dataclass
class Shape:
    """What distinguishes one small model from another. video_processor: its settings; None: it has those of images.

    video_layout: data.video_layout of its samples. mtp: whether the file has weights of multi-token prediction.
    """

    model_type: str
    layout: str
    seed: int
    text: dict
    vision: dict
    video_processor: dict | None = None
    vocabulary_size: int = 420
    video_layout: str = "released"
    mtp: bool = False


def config(shape, tokenizer):
    """config.json as published: the text model's keys at the top, those of Qwen3-VL and Qwen3.5 in a section."""
    text = shape.text | {"vocab_size": shape.vocabulary_size}
    if is_qwen3(shape):
        section = text | {"model_type": TEXT_TYPES[shape.model_type]}
        text = {"tie_word_embeddings": text["tie_word_embeddings"], "text_config": section}
    return {
        "architectures": [ARCHITECTURES[shape.model_type]],
        "model_type": shape.model_type,
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "vision_token_id": tokenizer.token_to_id("<|vision_pad|>"),
        "image_token_id": tokenizer.token_to_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_to_id("<|video_pad|>"),
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "torch_dtype": "float32",
        "vision_config": shape.vision,
    } | text


def make_processor(shape, folder):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    patch = {
        "patch_size": shape.vision["patch_size"],
        "temporal_patch_size": shape.vision["temporal_patch_size"],
        "merge_size": shape.vision["spatial_merge_size"],
    }
    images = pixel_settings(shape)
    videos = images if shape.video_processor is None else shape.video_processor
    return PROCESSORS[shape.model_type](
        image_processor=Qwen2VLImageProcessor(**patch, **images),
        tokenizer=tokenizer,
        video_processor=VIDEO_PROCESSORS[shape.model_type](**patch, **videos),
    )


def write_files(shape, processor, folder):
    """As published: an image processor in a file of its own, a video processor only where it differs."""
    patch = {
        "patch_size": shape.vision["patch_size"],
        "temporal_patch_size": shape.vision["temporal_patch_size"],
        "merge_size": shape.vision["spatial_merge_size"],
        "image_mean": list(processor.image_processor.image_mean),
        "image_std": list(processor.image_processor.image_std),
    }
    names = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": PROCESSORS[shape.model_type].__name__}
    write_json(folder / "preprocessor_config.json", pixel_settings(shape) | patch | names)
    if shape.video_processor is not None:
        names = {"video_processor_type": VIDEO_PROCESSORS[shape.model_type].__name__}
        write_json(folder / "video_preprocessor_config.json", shape.video_processor | patch | names)


def spread_decays(model, seed):
    """Norms of 1 + weight near 1, and decays between 0.3 and nearly 1 per row, so that states outlive chunks.

    The gated norm divides by outputs that are small where query and key are nearly orthogonal, which magnifies their rounding.
    Small output projections keep it below that of the other modules.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, modeling_qwen3_5.Qwen3_5RMSNorm):
                module.weight.sub_(1)
            if isinstance(module, modeling_qwen3_5.Qwen3_5GatedDeltaNet):
                module.A_log.copy_(torch.empty_like(module.A_log).uniform_(-5, 0.5, generator=generator))
                module.out_proj.weight.mul_(0.25)


def write(shape, folder):
    folder.mkdir(parents=True)
    tokenizer = small_tokenizer.byte_level(shape.vocabulary_size - 15, SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", config(shape, tokenizer))
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    randomise(model, shape.seed)
    spread_decays(model, shape.seed)
    processor = make_processor(shape, folder)
    if shape.layout == "saved":
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return
    write_files(shape, processor, folder)
    save_weights(model, folder, PUBLISHED_NAMES if shape.layout == "hub" else {})
    if shape.mtp:
        add_mtp(folder / "model.safetensors", shape)


def add_mtp(file, shape):
    """Adds two of the tensors of Qwen3.5's multi-token prediction."""
    hidden = shape.text["hidden_size"]
    generator = torch.Generator().manual_seed(shape.seed)
    tensors = load_file(file) | {
        "mtp.fc.weight": torch.randn(hidden, 2 * hidden, generator=generator),
        "mtp.norm.weight": torch.randn(hidden, generator=generator),
    }
    save_file(tensors, file, metadata={"format": "pt"})
