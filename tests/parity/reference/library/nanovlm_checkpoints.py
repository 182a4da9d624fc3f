"""Small nanoVLM models of transformers' modules, and their checkpoints in nanoVLM's own layout."""

import json
from dataclasses import dataclass

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, SiglipVisionConfig, SiglipVisionModel
from transformers.modeling_outputs import CausalLMOutput

from library import small_tokenizer
from library.idefics3_checkpoints import randomise

VISION_NAMES = [
    ("embeddings.patch_embedding", "patch_embedding.conv"),
    ("embeddings.position_embedding.weight", "patch_embedding.position_embedding"),
    ("encoder.layers", "blocks"),
    ("layer_norm1", "ln1"),
    ("layer_norm2", "ln2"),
    ("self_attn", "attn"),
    ("post_layernorm", "layer_norm"),
]
TEXT_NAMES = [
    ("model.", ""),
    ("embed_tokens", "token_embedding"),
    ("layers", "blocks"),
    ("self_attn", "attn"),
    ("o_proj", "out_proj"),
    ("input_layernorm", "norm1"),
    ("post_attention_layernorm", "norm2"),
    ("lm_head", "head"),
]


@dataclass
class Shape:
    """config: nanoVLM's; tokenizer_size: entries of tokenizer.json before the extra tokens, which it has if extra_in_file."""

    config: dict
    seed: int
    tokenizer_size: int
    extra_in_file: bool = False


class PixelShuffle(torch.nn.Module):
    """Squares of neighboring patches side by side in one row; written here after nanoVLM's description."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, rows):
        tiles, patches, features = rows.shape
        side, factor = int(patches**0.5), self.factor
        table = rows.reshape(tiles, side, side, features)
        squares = table.unfold(1, factor, factor).unfold(2, factor, factor)  # [tiles, row, column, features, y, x]
        return squares.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)


class NanoVlm(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        vision = SiglipVisionConfig(
            hidden_size=config["vit_hidden_dim"], intermediate_size=config["vit_inter_dim"], vision_use_head=False,
            num_hidden_layers=config["vit_n_blocks"], num_attention_heads=config["vit_n_heads"],
            image_size=config["vit_img_size"], patch_size=config["vit_patch_size"], layer_norm_eps=config["vit_ln_eps"],
        )
        text = LlamaConfig(
            vocab_size=config["lm_vocab_size"], hidden_size=config["lm_hidden_dim"], intermediate_size=config["lm_inter_dim"],
            num_hidden_layers=config["lm_n_blocks"], num_attention_heads=config["lm_n_heads"],
            num_key_value_heads=config["lm_n_kv_heads"], rms_norm_eps=config["lm_rms_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": config["lm_re_base"]},
            max_position_embeddings=config["lm_max_position_embeddings"], tie_word_embeddings=config["lm_tie_weights"],
        )
        self.vision_encoder = SiglipVisionModel(vision)
        self.shuffle = PixelShuffle(config["mp_pixel_shuffle_factor"])
        width = config["vit_hidden_dim"] * config["mp_pixel_shuffle_factor"] ** 2
        self.projector = torch.nn.Linear(width, config["lm_hidden_dim"], bias=False)
        self.decoder = LlamaForCausalLM(text)
        self.decoder.tie_weights()

    @property
    def dtype(self):
        return self.projector.weight.dtype

    def forward(self, input_ids, pixel_values=None, image_places=None, use_cache=None):
        embedded = self.decoder.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            features = self.projector(self.shuffle(self.vision_encoder(pixel_values).last_hidden_state)).flatten(0, 1)
            embedded = torch.stack([embedded[0].index_copy(0, image_places, features)])
        return CausalLMOutput(logits=self.decoder(inputs_embeds=embedded, use_cache=False).logits)


def replaced(name, pairs):
    for before, after in pairs:
        name = name.replace(before, after)
    return name


def own_names(tensors):
    """Names and shapes of nanoVLM: query, key and value in one, positions with a leading dimension."""
    named = {}
    for name, value in tensors.items():
        part, rest = name.split(".", 1)
        if part == "projector":
            named["MP.proj." + rest] = value
        elif part == "decoder":
            named["decoder." + replaced(rest, TEXT_NAMES)] = value
        else:
            rest = replaced(rest.removeprefix("vision_model."), VISION_NAMES)
            named["vision_encoder." + rest] = value[None] if rest.endswith("position_embedding") else value
    for name in [name for name in named if name.startswith("vision_encoder.") and ".q_proj." in name]:
        parts = [named.pop(name.replace("q_proj", other)) for other in ("q_proj", "k_proj", "v_proj")]
        named[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    return named


def make_processor(shape, folder):
    """As nanoVLM's get_tokenizer: with the extra tokens given by name, in their order."""
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    extra = dict(shape.config.get("vlm_extra_tokens", {}))
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **names, extra_special_tokens=extra)


def weights(model, config):
    """Returns the tensors that nanoVLM's save_pretrained writes: of tied weights the first name, and the RoPE frequencies."""
    tensors = own_names(dict(model.state_dict()))
    if config["lm_tie_weights"]:
        tensors.pop("decoder.token_embedding.weight")
    size = config["lm_hidden_dim"] // config["lm_n_heads"]
    exponents = torch.arange(0, size, 2).float() / size
    return tensors | {"decoder.rotary_embd.inv_freq": 1.0 / (config["lm_re_base"] ** exponents)}


def make_model(shape):
    model = NanoVlm(shape.config)
    randomise(model, shape.seed)
    return model.eval()


def write(shape, folder):
    folder.mkdir(parents=True)
    tokenizer = small_tokenizer.digits_apart(shape.tokenizer_size)
    if shape.extra_in_file:
        extra = shape.config["vlm_extra_tokens"].values()
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in extra])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(shape.config, indent=4))
    metadata = {"format": "pt"}
    if shape.config["lm_tie_weights"]:
        metadata["decoder.token_embedding.weight"] = "decoder.head.weight"
    tensors = {name: value.clone().contiguous() for name, value in weights(make_model(shape), shape.config).items()}
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
