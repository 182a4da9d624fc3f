"""Writes randomly initialized LLaVA checkpoints in the layouts that are met in the wild.

`hub`: llava-hf's published ones (weights `language_model.model…`, `vision_tower.vision_model…`); `modules`: what transformers
4.52 and later wrote (`model.language_model…`); `saved`: what save_pretrained of transformers 5 writes from scratch; `original`:
LLaVA's own code (keys mm_*, weights `model.layers…`), its vision tower in a folder of its own.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    CLIPImageProcessor,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessor,
)
from transformers.models.llava.image_processing_llava import LlavaImageProcessor

from library import small_tokenizer
from library.cases import write_json
from library.idefics3_checkpoints import randomise, renamed, save_weights, split_processor_config
from library.small_tokenizer import CORPUS

# The samples' texts come from llava_format.py; these templates write the same.
CHAT_TEMPLATES = {"llama": "llava_v1", "mistral": "mistral_instruct", "qwen2": "llava_qwen"}
WEIGHT_NAMES = {
    "hub": {
        "model.vision_tower.": "vision_tower.vision_model.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    },
    "modules": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "original": {
        "model.vision_tower.": "model.vision_tower.vision_tower.vision_model.",
        "model.multi_modal_projector.linear_1.": "model.mm_projector.0.",
        "model.multi_modal_projector.linear_2.": "model.mm_projector.2.",
        "model.language_model.": "model.",
    },
}
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
IMAGE_PROCESSORS = {"clip": CLIPImageProcessor, "llava": LlavaImageProcessor, "siglip": SiglipImageProcessor}


@dataclass
class Shape:
    """What distinguishes one small model from another."""

    layout: str
    seed: int
    text: dict
    vision: dict
    llava: dict = field(default_factory=dict)
    image_processor: str = "clip"
    pad_to_square: bool = False
    tokenizer: str = "llama"
    vocabulary_size: int = 470


def own_names(shape, name):
    """What vlmtrain calls a parameter: as transformers' modules, but LLaVA's own names in the original layout."""
    return renamed(name, WEIGHT_NAMES["original"]) if shape.layout == "original" else name


def llama_tokenizer(size, with_image):
    """SentencePiece as Llama's and Mistral's tokenizer.json write it: no pre-tokenizer, bytes for unknown characters, <s> first."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=tokens, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    state["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if with_image:
        tokenizer.add_special_tokens(["<image>", "<pad>"])
    return tokenizer


def make_tokenizer(shape):
    size = shape.vocabulary_size - 10
    if shape.tokenizer == "qwen":
        return small_tokenizer.byte_level(size, QWEN_TOKENS)
    return llama_tokenizer(size, with_image=shape.layout != "original")


def image_token(shape, tokenizer):
    """The original layout has no image token; transformers needs one that does not occur."""
    return shape.vocabulary_size - 1 if shape.layout == "original" else tokenizer.token_to_id("<image>")


def hugging_face_config(shape, tokenizer):
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": image_token(shape, tokenizer),
        "torch_dtype": "float32",
        "text_config": {"vocab_size": shape.vocabulary_size, "torch_dtype": "float32"} | shape.text,
        "vision_config": shape.vision,
    } | shape.llava


def original_config(shape):
    text = {key: value for key, value in shape.text.items() if key != "model_type"}
    return {
        "architectures": ["LlavaLlamaForCausalLM"],
        "model_type": "llava_" + shape.text["model_type"],
        "torch_dtype": "float32",
        "vocab_size": shape.vocabulary_size,
        "tie_word_embeddings": False,
        "image_aspect_ratio": "pad" if shape.pad_to_square else "square",
        "mm_vision_tower": "../tower",
        "mm_hidden_size": shape.vision["hidden_size"],
        "mm_vision_select_layer": shape.llava.get("vision_feature_layer", -2),
        "mm_vision_select_feature": "patch",
        "mm_projector_type": "mlp2x_gelu",
        "mm_use_im_start_end": False,
        "mm_use_im_patch_token": False,
        "tune_mm_mlp_adapter": False,
        "use_mm_proj": True,
    } | text


def make_image_processor(shape):
    side = shape.vision["image_size"]
    kind = IMAGE_PROCESSORS[shape.image_processor]
    if shape.image_processor == "siglip":
        return kind(size={"height": side, "width": side})
    more = {"do_pad": shape.pad_to_square} if shape.image_processor == "llava" else {}
    return kind(size={"shortest_edge": side}, crop_size={"height": side, "width": side}, **more)


def chat_template(shape):
    folder = Path(__file__).resolve().parents[4] / "configs" / "chat_templates"
    return (folder / f"{CHAT_TEMPLATES[shape.text['model_type']]}.jinja").read_text()


def make_processor(shape, folder):
    """LlavaProcessor over the tokenizer in the folder."""
    end = "<|im_end|>" if shape.tokenizer == "qwen" else "</s>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token=end, pad_token=end)
    return LlavaProcessor(
        image_processor=make_image_processor(shape),
        tokenizer=tokenizer,
        patch_size=shape.vision["patch_size"],
        vision_feature_select_strategy=shape.llava.get("vision_feature_select_strategy", "default"),
        num_additional_image_tokens=1 if shape.vision["model_type"] == "clip_vision_model" else 0,
        chat_template=chat_template(shape),
    )


def write_original(shape, model, folder):
    weights = {renamed(name, WEIGHT_NAMES["original"]): value for name, value in model.state_dict().items()}
    tower = {name: value for name, value in weights.items() if ".vision_tower." in name}
    rest = {name: value for name, value in weights.items() if name not in tower}
    save_file(rest, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", original_config(shape))
    prefix = "model.vision_tower.vision_tower."
    # As in openai/clip-vit-*: the folder also has the text tower.
    tower = {name.removeprefix(prefix): value for name, value in tower.items()} | {
        "text_model.final_layer_norm.weight": model.model.vision_tower.post_layernorm.weight.detach().clone()
    }
    (folder.parent / "tower").mkdir()
    save_file(tower, folder.parent / "tower" / "model.safetensors", metadata={"format": "pt"})
    write_json(folder.parent / "tower" / "config.json", {"model_type": "clip", "vision_config": shape.vision})


def write_hugging_face(shape, model, folder):
    processor = make_processor(shape, folder)
    processor.save_pretrained(folder)
    if shape.layout == "saved":
        model.save_pretrained(folder)
        return
    split_processor_config(folder)
    save_weights(model, folder, WEIGHT_NAMES[shape.layout])


def write(shape, folder, loadable=None):
    """Writes the checkpoint into the folder, and into `loadable` the same model in the format that transformers loads."""
    tokenizer = make_tokenizer(shape)
    for place in filter(None, (folder, loadable)):
        place.mkdir(parents=True)
        tokenizer.save(str(place / "tokenizer.json"))
        write_json(place / "config.json", hugging_face_config(shape, tokenizer))
    model = LlavaForConditionalGeneration(AutoConfig.from_pretrained(folder))
    randomise(model, shape.seed)
    (write_original if shape.layout == "original" else write_hugging_face)(shape, model, folder)
    if loadable:
        model.save_pretrained(loadable)
