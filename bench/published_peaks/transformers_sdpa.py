"""Forward and backward of whole models in fp16, with attention written out (eager) and with PyTorch's (sdpa).

The model pages of Hugging Face Transformers' documentation, "Using Scaled Dot Product Attention (SDPA)", table "Training":
BERT base on an A100 80 GB (PyTorch 2.2.0; pull request 28802), OPT 350M on an L40S (PyTorch 2.4.0; pull request 33298) and
Pythia 410M on an RTX 3080 Ti (PyTorch 2.2.1; pull request 31031). All name one script (by fxmarty); it sums the logits, has no
optimizer, and prints max_memory_allocated() of 100 steps after 10 warm-up steps, in MB (10^6). A step here is theirs.

The RTX 3080 Ti (sm_86) is not among the virtual GPUs; the RTX 3090 (sm_86) replaces it.
"""

from published_peaks.common import MB, Point, Process

WARM_UP, STEPS = 2, 3


def answer_as_the_mask_would():
    """Makes transformers drop masks of ones. It decides by reading the mask back, but a virtual GPU's values are zeros."""
    from transformers import modeling_attn_mask_utils as masks
    from transformers.models.bert import modeling_bert

    converter = masks.AttentionMaskConverter
    original = converter._ignore_causal_mask_sdpa  # noqa: SLF001

    def all_ones(attention_mask, inputs_embeds, past_key_values_length, **options):
        return original(None, inputs_embeds, past_key_values_length, **options)

    converter._ignore_causal_mask_sdpa = staticmethod(all_ones)  # noqa: SLF001
    modeling_bert._prepare_4d_attention_mask_for_sdpa = lambda mask, dtype, tgt_len: None  # noqa: SLF001, ARG005


def measure(make_model, points):
    import torch

    answer_as_the_mask_would()
    torch.set_default_dtype(torch.float16)
    peaks = {}
    for attention in ("sdpa", "eager"):
        with torch.device("cuda"):
            model = make_model(attention)
        model.train()
        for batch, tokens in (sizes for *sizes, how in points if how == attention):
            ids = torch.randint(model.config.vocab_size - 1, (batch, tokens)).to("cuda")

            for count in range(WARM_UP + STEPS):
                if count == WARM_UP:
                    torch.cuda.reset_peak_memory_stats()
                    torch.cuda.empty_cache()
                model.zero_grad()
                outputs = model(input_ids=ids)  # the previous step's outputs live until here
                loss = outputs.logits.sum()
                loss.backward()
            del outputs, loss
            peaks[(batch, tokens, attention)] = torch.cuda.max_memory_allocated()
        del model
    return [peaks[point] for point in points]


def opt_350m(attention):
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        ffn_dim=4096,
        num_attention_heads=16,
        word_embed_proj_dim=512,
        do_layer_norm_before=False,
        vocab_size=50272,
        max_position_embeddings=2048,
        attn_implementation=attention,
    )
    return OPTForCausalLM(config)


def bert_base(attention):
    from transformers import BertConfig, BertLMHeadModel

    return BertLMHeadModel(BertConfig(attn_implementation=attention))


def pythia_410m(attention):
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=50304,
        max_position_embeddings=2048,
        attn_implementation=attention,
    )
    return GPTNeoXForCausalLM(config)


OOM = None
# (batch, tokens): (eager, sdpa), as printed, without runs that ran out of memory. OPT's sdpa figures at 4 × 2048 and
# 8 × 2048 are omitted: the table repeats the time and memory of the preceding row (eager had run out of memory).
OPT_350M = {
    (1, 128): (1474.611, 1474.32),
    (1, 256): (1498.541, 1499.49),
    (1, 512): (1973.544, 1551.35),
    (1, 1024): (4867.113, 1698.35),
    (1, 2048): (15662.224, 2715.75),
    (2, 128): (1498.164, 1499.49),
    (2, 256): (1569.367, 1551.35),
    (2, 512): (3257.074, 1698.35),
    (2, 1024): (9054.405, 2715.75),
    (2, 2048): (30572.058, 4750.55),
    (4, 128): (1549.448, 1551.35),
    (4, 256): (2451.768, 1698.35),
    (4, 512): (5833.180, 2715.75),
    (4, 1024): (17427.842, 4750.55),
    (8, 128): (2049.115, 1697.78),
    (8, 256): (4222.567, 2715.75),
    (8, 512): (10985.391, 4750.55),
    (8, 1024): (34175.763, 8821.18),
}
BERT_BASE = {
    (4, 256): (939.213, 764.834),
    (4, 512): (1970.447, 1227.162),
    (8, 256): (1594.295, 1226.114),
    (8, 512): (3629.401, 2134.262),
    (16, 256): (2874.426, 2134.262),
    (16, 512): (6964.659, 3961.013),
}
PYTHIA_410M = {
    (1, 128): (1789.95, 1789.95),
    (1, 256): (1845.83, 1844.84),
    (1, 512): (2278.38, 1953.76),
    (1, 1024): (4772.36, 2408.35),
    (1, 2048): (13484.1, 3882.01),
    (2, 128): (1843.86, 1844.78),
    (2, 256): (1999.72, 1951.67),
    (2, 512): (3613.16, 2406.77),
    (2, 1024): (8707.55, 3878.86),
    (2, 2048): (OOM, 6825.13),
    (4, 128): (1947.6, 1952.06),
    (4, 256): (3008.39, 2405.99),
    (4, 512): (6290.58, 3877.29),
    (4, 1024): (OOM, 6821.98),
    (4, 2048): (OOM, 12705.1),
}


def process(title, stated_gpu, gpu, make_model, version, published):
    rows = [
        (batch, tokens, how, mb)
        for index, how in enumerate(("eager", "sdpa"))
        for (batch, tokens), row in published.items()
        if (mb := row[index]) is not OOM
    ]
    return Process(
        title=f"Transformers, {title}",
        stated_gpu=stated_gpu,
        gpu=gpu,
        unit="MB",
        unit_bytes=MB,
        points=[Point(f"{how}, {batch} × {tokens}", mb) for batch, tokens, how, mb in rows],
        measure=lambda: measure(make_model, [row[:3] for row in rows]),
        packages={"transformers": version},
    )


PROCESSES = [
    process("BERT base", "A100 80 GB", "a100-80", bert_base, "4.41.2", BERT_BASE),
    process("OPT 350M", "L40S", "l40s", opt_350m, "4.46.3", OPT_350M),
    process("Pythia 410M", "RTX 3080 Ti", "rtx3090", pythia_410m, "4.42.4", PYTHIA_410M),
]
