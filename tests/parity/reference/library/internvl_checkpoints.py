"""Writes randomly initialized InternVL checkpoints in the layouts that are met in the wild.

`hub`: the published ones (files and names of transformers 4: `vision_tower…`, `language_model.model…`, no tie_word_embeddings at the
top of config.json, one file for images and none for videos); `modules`: weights by the names of transformers 5's modules, and a file
for videos; `saved`: what save_pretrained of transformers 5 writes.
"""

from dataclasses import dataclass, field

from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor

from library import small_tokenizer
from library.cases import write_json
from library.idefics3_checkpoints import randomise, save_weights

MARKS = {
    "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>",
}
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *MARKS.values()]
PUBLISHED_NAMES = {
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
# What the published templates write.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n'}}{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "{{ '<IMG_CONTEXT>\\n' }}{% elif content['type'] == 'video' %}{{ '<video>\\n' }}{% elif content['type'] == 'text' %}"
    "{{ content['text'] }}{% endif %}{% endfor %}{% endif %}{{'<|im_end|>\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{'<|im_start|>assistant\\n' }}{% endif %}"
)
NORMALIZATION = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


@dataclass
class Shape:
    """What distinguishes one small model from another. tiles: (min_patches, max_patches); video_processor: more of its settings."""

    layout: str
    seed: int
    text: dict
    vision: dict
    tie_embeddings: bool = False
    downsample_ratio: float = 0.5
    tiles: tuple[int, int] = (1, 4)
    video_processor: dict = field(default_factory=dict)
    vocabulary_size: int = 420

    @property
    def side(self):
        return self.vision["image_size"][0]

    @property
    def tokens_per_tile(self):
        return int((self.side // self.vision["patch_size"][0] * self.downsample_ratio) ** 2)


def config(shape, tokenizer):
    text = shape.text | {
        "vocab_size": shape.vocabulary_size,
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "torch_dtype": "float32",
    }
    whole = {
        "architectures": ["InternVLForConditionalGeneration"],
        "model_type": "internvl",
        "downsample_ratio": shape.downsample_ratio,
        "image_seq_length": shape.tokens_per_tile,
        "image_token_id": tokenizer.token_to_id("<IMG_CONTEXT>"),
        "projector_hidden_act": "gelu",
        "text_config": text,
        "torch_dtype": "float32",
        "vision_config": shape.vision | {"model_type": "internvl_vision"},
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    }
    return whole if shape.layout == "hub" else whole | {"tie_word_embeddings": shape.tie_embeddings}


def make_processor(shape, folder):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>",
        extra_special_tokens=MARKS,
    )
    size = {"height": shape.side, "width": shape.side}
    least, most = shape.tiles
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, min_patches=least, max_patches=most, **NORMALIZATION),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(size=size, **NORMALIZATION, **shape.video_processor),
        image_seq_length=shape.tokens_per_tile,
        chat_template=CHAT_TEMPLATE,
    )


def write_files(shape, folder):
    least, most = shape.tiles
    common = NORMALIZATION | {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3,
        "rescale_factor": 1 / 255, "size": {"height": shape.side, "width": shape.side}, "processor_class": "InternVLProcessor",
    }
    images = {
        "crop_to_patches": False, "min_patches": least, "max_patches": most, "image_processor_type": "GotOcr2ImageProcessorFast",
    }
    write_json(folder / "preprocessor_config.json", common | images)
    if shape.layout != "hub":
        videos = {"video_processor_type": "InternVLVideoProcessor", "do_sample_frames": False}
        write_json(folder / "video_preprocessor_config.json", common | videos | shape.video_processor)
    write_json(
        folder / "processor_config.json", {"image_seq_length": shape.tokens_per_tile, "processor_class": "InternVLProcessor"}
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write(shape, folder):
    folder.mkdir(parents=True)
    # The mark of videos is the last token and has no row, as in the published checkpoints; transformers then never embeds it.
    tokenizer = small_tokenizer.byte_level(shape.vocabulary_size - len(SPECIAL_TOKENS) + 1, SPECIAL_TOKENS)
    assert tokenizer.token_to_id("<video>") == shape.vocabulary_size
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", config(shape, tokenizer))
    loaded = AutoConfig.from_pretrained(folder)
    loaded.tie_word_embeddings = shape.tie_embeddings
    model = AutoModelForImageTextToText.from_config(loaded)
    randomise(model, shape.seed)
    processor = make_processor(shape, folder)
    if shape.layout == "saved":
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return
    write_files(shape, folder)
    save_weights(model, folder, PUBLISHED_NAMES if shape.layout == "hub" else {})
