"""quantization/: matrices as bitsandbytes quantizes them, and adapters on quantized bases. All runs on the CPU (bitsandbytes_cpu.py).

matrices.safetensors holds, for each matrix NAME:

    NAME.source                     as it was given, in its own dtype
    NAME.nf4.weight, .absmax, .nested_absmax, .nested_offset     what bitsandbytes' quantize_4bit makes of it
    NAME.nf4.values                 dequantize_4bit, in the dtype of the source
    NAME.int8.weight, .SCB          what Int8Params makes of it (int8_vectorwise_quant)
    NAME.int8.values                int8_vectorwise_dequant, in the dtype of the source

and the tables `nf4` and `dynamic_map`. Each folder next to it is an adapter on a quantized base, as in lora.py: adapter/, case.json
and expected.safetensors with

    sample.I.logits, loss, gradient.NAME, step_losses, step_grad_norms

NF4: transformers quantises the checkpoint with BitsAndBytesConfig, peft adapts its Linear4bit. int8: bitsandbytes would quantise
the activations too; here peft adapts the plain model with the dequantised weights.
"""

import bitsandbytes
import torch
from bitsandbytes import functional
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

import families
from kinds.lora import LoraCase, adapted, save_adapter, saved_name, versions
from library import thin, training
from library.bitsandbytes_cpu import quantize_int8, quantize_nf4, use_pytorch_implementations
from library.cases import write_json

CASES = [
    ("nf4", LoraCase("nf4_all_linear", "every Linear but the output projection", "mixed_batch", "all-linear")),
    ("nf4", LoraCase("nf4_dora", "weight-decomposed, some names", "full_heads_untied_tiles", ["q_proj", "fc1", "down_proj"],
                     {"use_dora": True, "use_rslora": True})),
    ("nf4", LoraCase("nf4_llava", "LLaVA with Qwen2, language model and projector", "llava_siglip_qwen2",
                     r".*(language_model|multi_modal_projector).*(_proj|linear_\d)")),
    ("nf4", LoraCase("nf4_qwen", "Qwen2.5-VL with images and a video, every Linear but the output projection", "qwen2_5_vl_mixed", "all-linear")),
    ("nf4", LoraCase("nf4_qwen3", "Qwen3-VL with images and a video, every Linear but the output projection", "qwen3_vl_mixed", "all-linear")),
    ("nf4", LoraCase("nf4_qwen3_5", "Qwen3.5, the output Linear of a gated delta net", "qwen3_5_video", r".*\.out_proj")),
    ("nf4", LoraCase("nf4_gemma4", "Gemma 4, keys and clamped Linears of the tower", "gemma4_tower",
                     r".*(language_model.*\.k_proj|vision_tower.*\.k_proj\.linear)")),
    ("int8", LoraCase("int8_all_linear", "every Linear but the output projection", "mixed_batch", "all-linear")),
]
NAMES = ["matrices"] + [case.name for _, case in CASES]


def matrices():
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes, scale=0.02):
        return torch.randn(sizes, generator=generator) * scale

    outliers = normal(48, 128)
    outliers[torch.randint(48, (12,), generator=generator), torch.randint(128, (12,), generator=generator)] *= 200
    zeros = normal(16, 64)
    zeros[2:5] = 0
    zeros[9, :40] = 0
    return {
        "one_nested_block": normal(64, 256).bfloat16(),
        "several_nested_blocks_and_a_rest": normal(130, 130).bfloat16(),
        "no_multiple_of_64": normal(37, 54).half(),
        "odd_count": normal(7, 9),
        "less_than_a_block": normal(3, 5),
        "outliers": outliers.bfloat16(),
        "zeros": zeros,
        "only_zeros": torch.zeros(4, 64),
        "tiny": normal(8, 80, scale=1e-6),
        "even_spread": torch.linspace(-1, 1, 24 * 64)[torch.randperm(24 * 64, generator=generator)].view(24, 64),
    }


def make_matrices(out):
    tensors = {"nf4": functional.get_4bit_type("nf4", device="cpu"), "dynamic_map": functional.create_dynamic_map()}
    for name, weight in matrices().items():
        tensors[f"{name}.source"] = weight
        tensors |= {f"{name}.nf4.{part}": value for part, value in quantize_nf4(weight.clone()).items()}
        tensors |= {f"{name}.int8.{part}": value for part, value in quantize_int8(weight.clone()).items()}
    save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, out / "matrices.safetensors")


def nf4_base(checkpoint):
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32
    )
    model = AutoModelForImageTextToText.from_pretrained(
        checkpoint, dtype=torch.float32, device_map={"": "cpu"}, quantization_config=config
    )
    modules = {name: module for name, module in model.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)}
    for module in modules.values():
        module.support_avx512bf16_for_cpu = False  # which would compute in bf16
    return model.eval(), list(modules)


def int8_base(checkpoint):
    """Returns the Linears that transformers would quantize, with their dequantized values."""
    _, names = nf4_base(checkpoint)
    model = training.load(checkpoint, torch.float32)
    for name in names:
        weight = model.get_submodule(name).weight
        weight.data = quantize_int8(weight.data)["values"]
    return model, names


def make_case(quantization, case, data):
    base = families.find(case.base, data)
    folder = thin.empty_folder(data / "quantization" / case.name)
    with base.patched():
        samples = base.open().encode_all()
        plain, quantized = (nf4_base if quantization == "nf4" else int8_base)(base.checkpoint)
        model = adapted(plain.requires_grad_(False), case)
        save_adapter(model, case, folder / "adapter")
        result = training.run(model, samples, saved_name)
    tensors = {name: value for name, value in result.tensors().items() if not name.startswith("parameter.")}
    thin.save(tensors, folder / "expected.safetensors")
    write_json(folder / "case.json", {
        "name": case.name,
        "about": case.about,
        "base": case.base,
        "quantization": quantization,
        "quantized": sorted(quantized),
        "bitsandbytes": bitsandbytes.__version__,
        **versions(),
        **{key: training.SETTINGS[key] for key in ("learning_rate", "weight_decay", "max_grad_norm")},
    })


def make(name, data):
    library = use_pytorch_implementations()
    if name == "matrices":
        make_matrices(data / "quantization")
    else:
        make_case(*next(pair for pair in CASES if pair[1].name == name), data)
    del library
