"""Makes the data that quantized weights are held against: python make_quantization_reference.py [--out ../data/quantization].

requirements.txt has what it needs. All runs on the CPU. matrices.safetensors holds, for each matrix NAME:

    NAME.source                     as it was given, in its own dtype
    NAME.nf4.weight, .absmax, .nested_absmax, .nested_offset     what bitsandbytes' quantize_4bit makes of it
    NAME.nf4.values                 dequantize_4bit, in the dtype of the source
    NAME.int8.weight, .SCB          what Int8Params makes of it (int8_vectorwise_quant)
    NAME.int8.values                int8_vectorwise_dequant, in the dtype of the source

and the tables `nf4` and `dynamic_map`. Each folder next to it is an adapter on a quantized base, as in
make_lora_reference.py: adapter/, case.json and expected.safetensors with

    sample.I.logits, loss, gradient.NAME, step_losses, step_grad_norms

NF4: transformers quantises the checkpoint with BitsAndBytesConfig, peft adapts its Linear4bit. int8: bitsandbytes would quantise
the activations too; here peft adapts the plain model with the dequantised weights.

All blockwise operations are bitsandbytes' own PyTorch code, which agrees with its CUDA kernels. Its CPU library of 0.50 does not:
it looks nested absmax up in a table of 65,536 places and takes a neighbor of the nearest value for one or two in a thousand,
and with AVX-512 it scales rows whose length is a multiple of 16 but not of 64 by the absmax of other blocks.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # bitsandbytes' code as it is written, operation by operation

import bitsandbytes
import peft
import torch
import transformers
from bitsandbytes import functional
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

from library import thin
from library import training
from make_lora_reference import ALPHA, RANK, LoraCase, lay_out, randomise, make_samples, saved_name, trained

CASES = [
    ("nf4", LoraCase("nf4_all_linear", "every Linear but the output projection", "mixed_batch", "all-linear")),
    ("nf4", LoraCase("nf4_dora", "weight-decomposed, some names", "full_heads_untied_tiles", ["q_proj", "fc1", "down_proj"],
                     {"use_dora": True, "use_rslora": True})),
    ("nf4", LoraCase("nf4_llava", "LLaVA with Qwen2, language model and projector", "llava_siglip_qwen2",
                     r".*(language_model|multi_modal_projector).*(_proj|linear_\d)")),
    ("nf4", LoraCase("nf4_qwen", "Qwen2.5-VL with pictures and a video, every Linear but the output projection", "qwen2_5_vl_mixed", "all-linear")),
    ("nf4", LoraCase("nf4_qwen3", "Qwen3-VL with pictures and a video, every Linear but the output projection", "qwen3_vl_mixed", "all-linear")),
    ("int8", LoraCase("int8_all_linear", "every Linear but the output projection", "mixed_batch", "all-linear")),
]


def use_pytorch_implementations():
    """Sends bitsandbytes' blockwise operations on the CPU to its own PyTorch code, which all devices without a library use."""
    library = torch.library.Library("bitsandbytes", "IMPL")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    for name in ("quantize_blockwise", "dequantize_blockwise", "quantize_4bit", "dequantize_4bit"):
        operation = getattr(torch.ops.bitsandbytes, name).default
        library.impl(name, lambda *inputs, operation=operation: operation.redispatch(keys, *inputs), "CPU", allow_override=True)
    return library


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


def quantize_nf4(weight):
    packed, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    return {
        "weight": packed,
        "absmax": state.absmax,
        "nested_absmax": state.state2.absmax,
        "nested_offset": state.offset.view(1),
        "values": functional.dequantize_4bit(packed, state),
    }


def quantize_int8(weight):
    parameter = bitsandbytes.nn.Int8Params(weight, requires_grad=False).to("cpu")
    values = functional.int8_vectorwise_dequant(parameter.data, parameter.SCB).to(weight.dtype)
    zeros = parameter.SCB == 0
    parameter.data[zeros] = 0  # 0 · ∞ as an integer, whatever the processor makes of it
    values[zeros] = 0
    return {"weight": parameter.data, "SCB": parameter.SCB, "values": values}


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


def adapted(model, case):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=case.target_modules, **case.options)
    model = peft.get_peft_model(model, config)
    randomise(model, seed=len(case.name))
    return model.eval()


def run(model, samples):
    adamw = training.optimizer(model)
    losses, norms = [], []
    for step in range(training.STEPS):
        loss, logits = training.batch_loss(model, samples)
        adamw.zero_grad()
        loss.backward()
        if step == 0:
            tensors = {f"sample.{index}.logits": value.detach() for index, value in enumerate(logits)}
            tensors |= {f"gradient.{saved_name(n)}": p.grad.clone() for n, p in trained(model)}
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_([p for _, p in trained(model)], training.MAX_GRAD_NORM))
        adamw.step()
    return tensors | {"loss": losses[0], "step_losses": torch.stack(losses), "step_grad_norms": torch.stack(norms)}


def save_adapter(model, case, folder):
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"tests/parity/data/{case.base}/checkpoint"
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_case(quantization, case, out):
    base = out.parent / case.base
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    samples = make_samples(case.base, base)
    plain, quantized = (nf4_base if quantization == "nf4" else int8_base)(base / "checkpoint")
    model = adapted(plain, case)
    save_adapter(model, case, folder / "adapter")
    tensors = run(model, samples)
    thin.save(tensors, folder / "expected.safetensors")
    description = {
        "name": case.name,
        "about": case.about,
        "base": case.base,
        "quantization": quantization,
        "quantized": sorted(quantized),
        "bitsandbytes": bitsandbytes.__version__,
        "peft": peft.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "learning_rate": training.LEARNING_RATE,
        "weight_decay": training.WEIGHT_DECAY,
        "max_grad_norm": training.MAX_GRAD_NORM,
    }
    (folder / "case.json").write_text(json.dumps(description, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "data" / "quantization")
    parser.add_argument("--only", help="make only this case, and no matrices")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    library = use_pytorch_implementations()  # as long as it lives
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only is None:
        make_matrices(arguments.out)
    for quantization, case in CASES:
        if arguments.only in (None, case.name):
            with lay_out(case.base):
                make_case(quantization, case, arguments.out)
    del library


if __name__ == "__main__":
    main()
