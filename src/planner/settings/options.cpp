#include "vlmtrain/planner/options.h"

#include <optional>
#include <regex>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

const std::vector<std::pair<std::string, MemoryMode>>& list_memory_modes() {
  static const std::vector<std::pair<std::string, MemoryMode>> table{{"conservative", MemoryMode::kConservative},
                                                                     {"balanced", MemoryMode::kBalanced},
                                                                     {"aggressive", MemoryMode::kAggressive}};
  return table;
}

std::string to_string(MemoryMode mode) {
  for (const auto& [name, value] : list_memory_modes()) {
    if (value == mode) return name;
  }
  throw InternalError("unknown memory mode");
}

models::RecomputeBlockCounts RecomputeOption::resolve_block_counts(
    const models::RecomputeBlockCounts& total_block_counts) const {
  VLMTRAIN_CHECK(!is_auto(), "recompute: auto must be resolved by the planner");
  if (text == "none") return {};
  if (text == "all") return total_block_counts;
  const size_t plus_position = text.find('+'), slash_position = text.find('/');
  // N, V+L or V+L/A: stoll() stops at the separator.
  const int64_t first = std::stoll(text);
  const int64_t second = plus_position == std::string::npos ? first : std::stoll(text.substr(plus_position + 1));
  const int64_t num_selective_blocks =
      slash_position == std::string::npos ? 0 : std::stoll(text.substr(slash_position + 1));
  return models::clamp_recompute_counts(
      {.vision = first, .language = second, .language_selective = num_selective_blocks}, total_block_counts);
}

RecomputeOption RecomputeOption::from_block_counts(const models::RecomputeBlockCounts& blocks) {
  RecomputeOption recompute_option{fmt::format("{}+{}", blocks.vision, blocks.language)};
  if (blocks.language_selective > 0) recompute_option.text += fmt::format("/{}", blocks.language_selective);
  return recompute_option;
}

void declare_options(OptionTable& table, MemoryOptions& options) {
  // Larger values are typing errors. At this limit, sums in bytes still fit into int64_t.
  constexpr double kMaxGigabytes = 1e6;
  const ValueCheck<double> gigabytes_check{
      fmt::format("greater than 0, at most {}", kMaxGigabytes),
      [](double gigabytes) { return gigabytes > 0 && gigabytes <= kMaxGigabytes; }};
  table.set_section_description("memory",
                                "Memory limit and ways to save memory. The planner sets the values that are `auto` "
                                "(docs/explanation/planning.md, for the CPU docs/explanation/memory.md). None of them "
                                "changes loss or gradients beyond rounding.");
  table.add(
      keys::memory::kLimitGb, options.limit_gb,
      {.doc = "Maximum memory of the process in GB of 10⁹ bytes. On a GPU: GPU memory, CUDA's context included; memory "
              "of other processes does not count. On the CPU: host memory. `auto`: the whole GPU, or the host memory "
              "that is free and allowed when the run starts.",
       .resume = ResumeRule::kFree,
       .unit = "GB"},
      allow_auto(gigabytes_check));
  table.add_enum(
      keys::memory::kMode, options.mode, list_memory_modes(),
      {.doc =
           "Share of the GPU or host memory that a plan keeps free: conservative 10 %, balanced 5 %, aggressive 2 %.",
       .resume = ResumeRule::kFree});
  const auto is_valid_recompute_option = [](const std::string& text) {
    static const std::regex block_counts_pattern("[0-9]{1,6}([+][0-9]{1,6}(/[0-9]{1,6})?)?");
    return text == "auto" || text == "none" || text == "all" || std::regex_match(text, block_counts_pattern);
  };
  table.add(
      keys::memory::kRecompute, options.recompute.text,
      {.doc = "Number of blocks whose activations are recomputed in the backward pass instead of kept (activation "
              "checkpointing). One number applies to the vision tower and the language model each; `V+L` sets V and L. "
              "`V+L/A`: A of the L blocks keep their attention outputs, which are not recomputed. `auto`: the fastest "
              "setting that fits.",
       .resume = ResumeRule::kFree,
       .hints = {{.names = {"gradient_checkpointing", "use_gradient_checkpointing", "activation_checkpointing",
                            "grad_checkpoint", "use_reentrant_gc", "vit_gradient_checkpointing"},
                  .text = "memory.recompute: auto recomputes as few blocks as fit"}}},
      ValueCheck<std::string>{"auto, none, all, a number of blocks, two as V+L or three as V+L/A",
                              is_valid_recompute_option});
  table.add_enum(
      keys::memory::kOffload, options.offload,
      {{"none", engine::Offload::kNone},
       {"optimizer", engine::Offload::kOptimizer},
       {"weights", engine::Offload::kWeights},
       {"gradients", engine::Offload::kGradients},
       {"auto", std::nullopt}},
      {.doc = "What is in page-locked host memory (docs/how-to/host-memory.md). `optimizer`: "
              "masters and moments of AdamW. `weights`: also the weights of blocks, except for adapters. `gradients`: "
              "also the sums of their gradients, on one GPU or with full sharding. `auto`: as "
              "little as makes the run fit, or more where that is faster. No effect on the CPU.",
       .resume = ResumeRule::kFree,
       .hints = {{.names = {"offload_optimizer", "offload_optimizer_device", "cpu_offload", "fsdp_offload_params"},
                  .text = "memory.offload: optimizer keeps masters and moments in host memory"}}});
  table.add_enum(
      keys::memory::kOffloadActivations, options.offload_activations,
      {{"false", false}, {"true", true}, {"auto", std::nullopt}},
      {.doc = "If true, the inputs of recomputed blocks are in page-locked host memory until the backward pass "
              "(docs/how-to/host-memory.md). `auto`: if that makes the run fit or faster. No effect on the CPU.",
       .resume = ResumeRule::kFree,
       .hints = {{.names = {"activation_offloading", "enable_activation_offloading", "activation_offload"},
                  .text = "memory.offload_activations: true copies the inputs of recomputed blocks to host memory"}}});
  table.add_enum(
      keys::memory::kPerLayerEmbeddings, options.per_layer_embeddings,
      {{"device", nn::MemoryPlacement::kDevice}, {"host", nn::MemoryPlacement::kHost}, {"auto", std::nullopt}},
      {.doc =
           "Memory of the table of per-layer embeddings (Gemma 4 E2B and E4B). `host`: page-locked host memory, from "
           "which the GPU reads the rows of a micro-batch; the table must be frozen. `auto`: `host` for a frozen "
           "table where that makes the run fit or faster. No effect on the CPU.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::memory::kVisionTilesPerPass, options.vision_tiles_per_pass,
      {.doc =
           "Maximum number of tiles that the vision tower processes at a time. 0: all tiles of a micro-batch. `auto`: "
           "all, or fewer if nothing else fits.",
       .resume = ResumeRule::kFree,
       .unit = "tiles"},
      allow_auto(at_least<int64_t>(0)));
  table.add(keys::memory::kLossChunkRows, options.loss_chunk_rows,
            {.doc = "Maximum number of label positions whose logits exist at a time. `auto`: 512, or fewer if nothing "
                    "else fits.",
             .resume = ResumeRule::kFree,
             .unit = "rows"},
            allow_auto(at_least<int64_t>(1)));
  table.add(
      keys::memory::kExpandableSegments, options.expandable_segments,
      {.doc = "If true, GPU memory is reserved in segments that grow, so that changing batch sizes do not fragment it. "
              "false: PyTorch's fixed segments.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::memory::kAllowSplits, options.allow_splits,
      {.doc =
           "If true, `training.micro_batch_size` may be too large for the largest samples: micro-batches that do not "
           "fit are split, which does not change the result. If false, such a run stops with an error at the start.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::memory::kLookAhead, options.look_ahead,
      {.doc = "If true, on a GPU a child process dry-runs the run's own micro-batches a few steps ahead. Micro-batches "
              "that would not fit are split before they fail (docs/explanation/memory.md).",
       .resume = ResumeRule::kFree,
       .aliases = {"memory.twin"}});
  table.add(keys::memory::kEmptyCacheAbove, options.empty_cache_threshold,
            {.doc = "On a GPU: share of the reserved memory that may be unallocated at the step's peak. Above it, the "
                    "allocator's cache is emptied before the next step. 1: never.",
             .resume = ResumeRule::kFree},
            between(0.0, 1.0));
}

}  // namespace vlmtrain::planner
