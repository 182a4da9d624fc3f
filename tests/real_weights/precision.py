"""Losses and greedy answers in each precision and format of weights, against transformers in the same one.

The bounds follow from what the arithmetic does to transformers itself. s is the root mean square, over label tokens, of the difference
between transformers' loss of a token in this precision and in float64. Two programs that round as well as transformers differ in one
token by s · √2. All records begin with the same tokens and meet the same weights, so their errors may point the same way and need not
average out: mean losses may differ by twice s · √2. In fp32, 1e-5 of the loss is allowed in any case: the first token of a prompt has
activations of up to 25,000 in trained models, and all others attend to it, so one rounding there shifts every loss. A loss is a
difference of logits, so a greedy answer may part from the other where the better token leads by no more than three times s · √2.
"""

import math

import torch

import results
from bench import read_lines
from formats import VALUES
from peer import Peer

SIGMAS_OF_LOSS, SIGMAS_OF_LOGIT = 2, 3
SHIFT_IN_FP32 = 1e-5
NEW_TOKENS = 8
QUANTIZED_ANSWERS = 2  # each of 64 tokens, for which all weights are dequantized
FORMATS = ("fp32", "bf16", "fp16", "nf4", "int8")
FORMAT_STEP = 10  # of the 7 Linears of a block, each kind has its turn
CACHE = {}


def compute_precision(bench, name):
    """Quantized weights are computed with in fp32 on the CPU, and in bf16 on a GPU, as QLoRA does."""
    return name if name not in VALUES else "fp32" if bench.is_cpu else "bf16"


def once(key, make):
    if key not in CACHE:
        CACHE[key] = make()
    return CACHE[key]


def make_peer(bench, model, name):
    """The last one is kept: a check of losses is followed by one of answers."""
    quantization = name if name in VALUES else None
    key = ("peer", model, name)
    if key not in CACHE:
        for other in [other for other in CACHE if other[0] == "peer"]:
            del CACHE[other]
        CACHE[key] = Peer(bench, model, compute_precision(bench, name), quantization)
    return CACHE[key]


def exact_losses(bench, model):
    """transformers' in float64 on the CPU."""
    return once(("exact", model), lambda: torch.cat(Peer(bench, model, "fp64", device="cpu").token_losses()))


def rounding_error(bench, model, name):
    """s of the precision that `name` computes in."""
    precision = compute_precision(bench, name)

    def measure():
        result = torch.cat(make_peer(bench, model, precision).token_losses())
        return (result - exact_losses(bench, model)).square().mean().sqrt().item()

    return once(("error", model, precision), measure)


def evaluate(bench, model, name):
    """vlmtrain's loss, and its answers by id. A virtual GPU computes neither, and runs a training step instead."""
    if bench.is_virtual:
        bench.train(model, f"{model}-{name}", training_settings(bench, name))
        return None, {}
    if name == compute_precision(bench, name):
        return once(("evaluation", model, name), lambda: bench.evaluate(model, name, NEW_TOKENS))
    return once(("evaluation", model, name), lambda: evaluate_quantized(bench, model, name))


def training_settings(bench, name):
    """A step that changes nothing."""
    quantization = {"model.quantization": name, "lora.rank": 4} if name in VALUES else {}
    return {"training.learning_rate": 0, "training.max_steps": 1, "training.precision": compute_precision(bench, name), **quantization}


def evaluate_quantized(bench, model, name):
    """By the evaluation of a training run: `eval` takes the base's own weights."""
    run = bench.train(model, f"{model}-{name}", training_settings(bench, name) | {
        "training.eval_steps": 1, "training.eval_answers": False, "output.sample_predictions": QUANTIZED_ANSWERS,
        "output.sample_predictions_share": 1,
    })  # fmt: skip
    answers = {line["id"]: line["answer"] for line in read_lines(run / "predictions.jsonl")}
    return read_lines(run / "metrics.jsonl")[0]["evaluation"]["loss"], answers


def check_loss(bench, model, name):
    ours, _ = evaluate(bench, model, name)
    if bench.is_virtual:
        return results.measured("a training step ran on a virtual GPU, which computes no values")
    error = rounding_error(bench, model, name)
    losses = make_peer(bench, model, name).token_losses()
    theirs, exact = torch.cat(losses).mean().item(), exact_losses(bench, model).mean().item()
    bound = SIGMAS_OF_LOSS * math.sqrt(2) * error
    if compute_precision(bench, name) == "fp32":
        bound = max(bound, SHIFT_IN_FP32 * theirs)
    figures = {"vlmtrain": ours, "transformers": theirs, "float64": exact, "difference": abs(ours - theirs), "bound": bound,
               "error_of_a_token": error, "records": len(losses), "label_tokens": sum(map(len, losses))}
    text = f"loss {ours:.6f}, transformers {theirs:.6f}, float64 unquantized {exact:.6f}; "
    text += f"difference {abs(ours - theirs):.1e}, bound {bound:.1e}"
    if not math.isfinite(theirs):
        return results.measured(f"{text}; transformers has no finite loss", **figures)
    holds = abs(ours - theirs) <= bound
    if name == "fp32" and not bench.is_cpu:
        figures["vlmtrain_on_cpu"] = on_cpu = bench.evaluate(model, name, NEW_TOKENS, device="cpu")[0]
        text += f"; vlmtrain on the CPU {on_cpu:.6f}"
        holds = holds and abs(ours - on_cpu) <= bound
    return results.judged(holds, text, **figures)


def check_answers(bench, model, name):
    if bench.is_virtual:
        return results.skipped("a virtual GPU computes no values")
    _, ours = evaluate(bench, model, name)
    error = rounding_error(bench, model, name)
    peer = make_peer(bench, model, name)
    bound = SIGMAS_OF_LOGIT * math.sqrt(2) * error
    max_new_tokens = NEW_TOKENS if name == compute_precision(bench, name) else 64
    equal, parted, too_far = 0, [], []
    for record in peer.records:
        if record["id"] not in ours:
            continue
        result, expected = ours[record["id"]].strip(), peer.answer(record, max_new_tokens).strip()
        if result == expected:
            equal += 1
            continue
        margin, place = peer.margin(record, result, expected)
        parted.append({"id": record["id"], "token": place, "margin": margin, "vlmtrain": result, "transformers": expected})
        if margin > bound:
            too_far.append(record["id"])
    largest = max((answer["margin"] for answer in parted), default=0.0)
    text = f"{equal} of {len(ours)} greedy answers are equal"
    if parted:
        text += f"; the others part where the better token leads by at most {largest:.1e}, bound {bound:.1e}"
    if not math.isfinite(error):
        return results.measured(f"{text}; transformers has no finite loss", parted=parted)
    return results.judged(not too_far, text, equal=equal, answers=len(ours), largest_margin=largest, bound=bound, parted=parted)


def check_format(bench, model):
    """Compares formats.py with bitsandbytes' PyTorch code on the CPU, for one in ten of the checkpoint's Linears."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        return results.skipped("bitsandbytes is not installed")
    import sys

    import formats
    from bench import ROOT

    sys.path.insert(0, str(ROOT / "tests" / "parity" / "reference"))
    from library import bitsandbytes_cpu as reference

    library = reference.use_pytorch_implementations()
    peer = Peer(bench, model, "fp32", device="cpu")
    output = peer.model.get_output_embeddings()
    linears = [module for module in peer.model.modules() if isinstance(module, torch.nn.Linear) and module is not output]
    weights = [module.weight.data for module in linears[::FORMAT_STEP]]
    different = {"nf4": 0, "int8": 0}
    for weight in weights:
        for name, theirs in (("nf4", reference.quantize_nf4), ("int8", reference.quantize_int8)):
            different[name] += (formats.VALUES[name](weight) != theirs(weight.clone())["values"]).sum().item()
    del library
    count = sum(weight.numel() for weight in weights)
    text = f"{len(weights)} Linears, {count:,} weights; values that differ from bitsandbytes {bitsandbytes.__version__}: "
    text += f"nf4 {different['nf4']}, int8 {different['int8']}"
    return results.judged(not any(different.values()), text, **different)
