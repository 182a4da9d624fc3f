"""The queue, in order. Entries without a result run before stale ones; within each group this order holds."""

from checks import (cuda_context, custom_kernels, gpu_tests, interruptions, kernel_speed, media, memory_shortage, peers, plan_accuracy,
                    published_settings, ranks, real_weights, step_kernels, transformers_speed, values)
from harness.check import Entry

# The code whose values and times every step depends on.
STEP = ("src/nn", "src/kernels", "src/engine", "src/models", "include/vlmtrain/nn", "include/vlmtrain/kernels", "include/vlmtrain/engine",
        "include/vlmtrain/models", "cmake/libtorch.version")
PLANNING = ("src/planner", "src/memory", "src/vgpu", "include/vlmtrain/planner", "include/vlmtrain/memory", "include/vlmtrain/vgpu")
SAVING = ("src/train", "src/io", "include/vlmtrain/train", "include/vlmtrain/io")
GENERATION = ("src/engine/generation/generate.cpp", "src/nn/attention/attention.cpp")

ENTRIES = [
    Entry("step-kernels", "A step of Qwen2.5-VL-3B by kernel name and grid", 140,
          "Milliseconds of each part of a step, LoRA 16 and LoRA 16 on NF4, next to the inferred ones.", step_kernels.checks,
          STEP + ("bench/kernel_times.cpp", "bench/kernel_times.py", "bench/step_parts.py")),
    Entry("custom-kernels", "Custom kernels one by one, against the first H200", 30,
          "GB/s next to a copy; no kernel has become slower.", kernel_speed.checks,
          ("src/kernels", "include/vlmtrain/kernels", "cmake/libtorch.version", "bench/kernel_speed.cpp")),
    Entry("plan-accuracy", "Plans against measurements: five caps, three models", 640,
          "Peak memory within 3 % of the plan, no retry, no split; step times within a factor of two; the next larger micro-batch does not fit.",
          plan_accuracy.checks, STEP + PLANNING),
    Entry("offload", "Optimizer state, weights, gradients and inputs of blocks in host memory: SmolVLM-256M and Qwen2.5-VL-7B in full", 270,
          "Peak memory within 3 % of the plan; step times within a factor of two; tokens per second next to resident runs.",
          plan_accuracy.offload_checks, STEP + PLANNING),
    *[Entry(f"cuda-context-{gpu.lower()}", f"The CUDA context of an {gpu}", 16,
            "What a process takes outside PyTorch's allocator, after its first step and at its end, is at most what plans subtract.",
            cuda_context.checks, STEP + PLANNING, dry_device=f"virtual:{gpu.lower()}", unusable=cuda_context.find_missing_packages(gpu))
      for gpu in ("H100", "H200")],
    Entry("interruptions", "Kill, stop and resume; checkpoints that are written while steps go on", 155,
          "After resuming, losses and weights as without an interruption, within what the order of fp32 sums allows; which bits are equal.",
          interruptions.checks, STEP + SAVING, dry_device="cpu"),
    Entry("memory-shortage", "Later steps that do not fit: look-ahead, guard, and another process on the GPU", 115,
          "The look-ahead splits before memory runs out; the guard does steps again after; losses in fp32 as in an undisturbed run.",
          memory_shortage.checks, STEP + PLANNING + ("src/train", "include/vlmtrain/train")),
    Entry("media", "Videos, volumes and masks in fp32 against the CPU", 30,
          "Losses, gradients and weights within what the order of fp32 sums allows; the same scores of masks.",
          media.checks, STEP + ("src/image", "include/vlmtrain/image", "src/evaluation", "include/vlmtrain/evaluation"), jobs=5),
    Entry("peers", "LoRA of Qwen2.5-VL-3B against transformers and PEFT, Liger and bitsandbytes", 510,
          "At least as many tokens per second as the peer's fastest SDPA backend and micro-batch; first losses within 2e-2.", peers.checks,
          STEP + ("bench/peer_lora.py", "bench/peer_transformers.py"), carry=("portable", "python"), dry_device="cpu"),
    Entry("real-weights", "SmolLM2's weights: losses, answers, fp16's loss scale, and training against transformers and PEFT", 200,
          "Losses and answers in fp32, bf16, fp16, NF4 and int8 within the bounds of the arithmetic; loss curves of transformers.",
          real_weights.checks, STEP + ("tests/real_weights", "scripts/real_weights", "bench/peer_transformers.py"),
          carry=("portable", "python", "smollm2")),
    Entry("published-settings", "Settings that NeMo Automodel and LLMQ published for an H100", 165,
          "Tokens per second with text-only records next to the published ones; what differs is stated.", published_settings.checks, STEP),
    Entry("kernels-against-aten", "A step with custom kernels against one with ATen's operations", 200,
          "First losses within 5e-3, and custom kernels are faster.", custom_kernels.checks, STEP),
    Entry("values-fp32", "fp32 training, answers and evaluation against the CPU", 120,
          "Losses, gradients and weights within what the order of fp32 sums allows; the same answers.", values.fp32_checks, STEP, jobs=8),
    Entry("values-16-bit", "16 bits, quantization, optimizer states, recomputation and dropout against the CPU", 120,
          "As far from fp32 as the CPU's own 16 bits; NF4, int8 and layouts of a step as in fp32.", values.variant_checks, STEP, jobs=8),
    Entry("gpu-tests", "tests/gpu: gradients by tensor, attention, quantization, optimizer, dropout, kernels", 90,
          "All tests pass.", gpu_tests.checks, STEP + ("tests/gpu",), carry=("portable", "gpu_tests"), jobs=9, dry_device="cpu"),
    Entry("speed-against-transformers", "SmolVLM-256M training against transformers, and generation", 100,
          "At least as many tokens per second; first losses within 2e-2.", transformers_speed.checks, STEP + ("bench/peer_transformers.py",)),
    Entry("ranks", "Two GPUs: values, repetition, NCCL's memory and time, lost and stopped ranks", 360,
          "Two ranks train as one process does; a lost rank ends the run within 30 s.", ranks.checks,
          STEP + ("src/distributed", "include/vlmtrain/distributed", "src/train"), unusable=ranks.unusable),
]
