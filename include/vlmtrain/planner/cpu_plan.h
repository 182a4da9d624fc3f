#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The host memory of a CPU run outside its tensors.
struct CpuMemoryNeeds {
  int64_t process_bytes = 0;     ///< the program and the records of the data set
  int64_t sample_bytes = 0;      ///< the largest decoded sample
  int64_t decode_bytes = 0;      ///< additional memory of a loader thread while it decodes a sample
  int64_t samples_per_step = 1;  ///< of this rank
  int64_t world_size = 1;
  int64_t loader_threads = 1;
};

/// The host memory that a process of a CPU run may use, by purpose.
struct CpuMemoryLimit {
  memory::AvailableHostMemory available;  ///< measured, or memory.limit_gb if that is lower
  double margin_percent = 0;              ///< of available.bytes
  int64_t margin_bytes = 0;               ///< kept free
  int64_t process_bytes = 0;              ///< CpuMemoryNeeds::process_bytes
  int64_t prefetch_bytes = 0;             ///< limit of the decoded samples in the loader's queue
  int64_t samples_bytes = 0;              ///< prefetched samples, samples of the step, samples in decoding
  int64_t libraries_bytes = 0;            ///< memory of oneDNN and MKL, stacks, the autograd graph
  int64_t tensor_bytes = 0;               ///< remains for tensors of the training thread and malloc's free blocks

  /// Returns the memory of a process whose tensors, malloc's free blocks included, take `tensors` bytes.
  int64_t total_bytes(int64_t tensors) const { return tensors + process_bytes + samples_bytes + libraries_bytes; }
};

/// Returns the limit of a process. `limit_gigabytes` is memory.limit_gb in 10⁹ bytes.
CpuMemoryLimit compute_cpu_memory_limit(memory::AvailableHostMemory available, std::optional<double> limit_gigabytes,
                                        MemoryMode mode, const CpuMemoryNeeds& needs);

/// Returns the limit of decoded samples in the loader's queue: a quarter of the free memory, at least 1.
int64_t compute_prefetch_bytes(int64_t limit_bytes, int64_t used_bytes);

/// The input of make_cpu_plan().
struct CpuPlanRequest {
  std::string model;  ///< as the user wrote it
  Job job;
  MemoryMode mode = MemoryMode::kBalanced;
  memory::AvailableHostMemory available;
  std::optional<double> limit_gigabytes;  ///< memory.limit_gb
  CpuMemoryNeeds needs;
  Workload workload;
  StepConstraints constraints;
  int64_t max_micro_batch_size = 1;             ///< the largest size to try if none is set
  std::vector<SampleLimit> sample_limits = {};  ///< the smallest change first
  bool with_suggestions = true;                 ///< compute CpuPlan::suggestions
  bool with_split = true;                       ///< compute CpuPlan::split
};

/// The result of make_cpu_plan().
struct CpuPlan {
  std::string model;
  Job job;
  MemoryMode mode = MemoryMode::kBalanced;
  bool fits = false;
  StepConfig step_config;  ///< if nothing fits: the one that needs the least memory
  /// The split of each step by the memory of its samples; nullopt: micro-batches of equal size.
  std::optional<SplitPlan> split = std::nullopt;
  int64_t peak_bytes = 0;           ///< peak of live tensors
  int64_t malloc_cached_bytes = 0;  ///< upper bound of malloc's free blocks at the peak
  DryRunDetail detail;
  CpuMemoryLimit limit;
  Workload workload;
  SampleBatch worst;                    ///< the candidate that needs the most memory with `step_config`
  std::vector<Suggestion> suggestions;  ///< each dry-run; empty if the plan fits
  PlanningEffort effort;

  int64_t needed_bytes() const { return peak_bytes + malloc_cached_bytes; }
  int64_t total_bytes() const { return limit.total_bytes(needed_bytes()); }
  /// Returns the content of plan.json, with the keys of a GPU plan where they apply.
  nlohmann::ordered_json to_json() const;
};

/// Returns the first StepConfig that fits in this order: micro-batches from the largest to the smallest
/// without recomputation; the smallest with as few recomputed blocks as fit; the same with more vision
/// passes and small loss chunks. On a CPU, larger micro-batches are hardly faster, and recomputation costs
/// time.
///
/// Each candidate is dry-run: an optimizer step of the worst samples in the training engine on LibTorch's
/// meta device (memory/meta_memory.h), which allocates and computes nothing. A dry run takes about 0.1 s.
/// Throws the exceptions of build_model(), and c10::Error if an operation does not support the meta device.
CpuPlan make_cpu_plan(const CpuPlanRequest& request);

/// Returns CpuPlan::needed_bytes() of a StepConfig, the maximum over the workload's candidates.
int64_t dry_run_cpu_bytes(const Job& job, const Workload& workload, const StepConfig& step_config);

}  // namespace vlmtrain::planner
