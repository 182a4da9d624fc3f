#pragma once

#include "vlmtrain/planner/options.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/sample_limit.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// What the command that asks for a plan is told to change, in its own words.
struct FlagSyntax {
  std::string gpu;                             ///< "--gpu {}" or "--gpu-gb {}"; empty: it has the card that it has
  bool gpu_by_size = false;                    ///< in gigabytes; else a name of the table
  std::string lora_argument = "lora.rank={}";  ///< for LoRA of `lora_rank`
  int64_t lora_rank = 16;
};

struct PlanRequest {
  std::string model;  ///< as the user named it
  Job job;
  bool chooses_sharding = false;  ///< of several ranks: the least predicted step time that fits, not job.sharding
  TargetGpu target;
  MemoryMode mode = MemoryMode::kBalanced;
  std::optional<double> limit_gigabytes;
  Workload workload;
  StepConstraints constraints;
  std::vector<SampleLimit> sample_limits = {};  ///< the least change first
  FlagSyntax flags = {};
  bool with_timeline = false;
  bool with_suggestions = true;  ///< false: nobody asks what would help where nothing fits, which takes longest
  bool with_split = true;        ///< false: steps are cut otherwise, as by a table that is there already
};

/// What stands for `target` in rehearsals: a card without limit that says it has the same size.
VirtualGpu make_virtual_gpu(const TargetGpu& target);

/// The plan with the least predicted step time among those that fit, each tried on a virtual card that says it is as
/// large as the target and has no limit: where the reserved peak stays below the limit, a card of that size does the
/// same, allocation by allocation.
///
/// Micro-batches are divisors of a rank's share of the global batch. Blocks are recomputed one by one, first those
/// whose recomputation costs least time for the bytes that it saves, as few as fit. Four short rehearsals tell what a
/// sample and a block take; from them the search guesses, and then rehearses its guess in full (four steps of changing
/// sizes), until a guess fits and neither one block less nor the next larger micro-batch does. Where nothing fits, what
/// needs least of all that a person could choose is rehearsed. If that fits, ever fewer vision tiles a pass and ever
/// smaller loss chunks are tried up to it; else `fits` is false, it is the plan, and the suggestions say what would
/// help: each is rehearsed, those that change least come first.
///
/// Throws UserError: kUsage where the global batch is no multiple of the ranks or a fixed micro-batch does not divide a
/// rank's share; whatever building the model throws.
Plan make_plan(const PlanRequest& request);

}  // namespace vlmtrain::planner
