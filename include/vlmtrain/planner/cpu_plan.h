#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The host memory that a CPU run needs in addition to its tensors, and the counts it depends on.
struct HostMemoryRequirements {
  int64_t process_bytes = 0;         ///< the program and the records of the data set
  int64_t largest_sample_bytes = 0;  ///< size of the largest decoded sample
  int64_t decode_bytes = 0;          ///< additional memory of a loader thread while it decodes a sample
  int64_t samples_per_step = 1;      ///< samples of this rank per optimizer step
  int64_t world_size = 1;
  int64_t num_loader_threads = 1;
};

/// The host memory that a process of a CPU run may use, by purpose: available memory = margin +
/// process + decoded samples + libraries + tensors.
struct HostMemoryLimit {
  memory::AvailableHostMemory available_memory;  ///< measured, or memory.limit_gb if that is lower
  double margin_percent = 0;                     ///< share of available_memory.bytes that is kept free
  int64_t margin_bytes = 0;                      ///< the same share in bytes
  int64_t process_bytes = 0;                     ///< HostMemoryRequirements::process_bytes
  int64_t prefetch_bytes = 0;                    ///< limit of the decoded samples in the loader's queue
  /// Decoded samples: those in the loader's queue, those of the current step, and those being
  /// decoded.
  int64_t decoded_samples_bytes = 0;
  int64_t library_bytes = 0;  ///< buffers of oneDNN and MKL, stacks, the autograd graph
  /// The remaining bytes, for tensors of the training thread and malloc's free blocks; 0 if none
  /// remain.
  int64_t available_tensor_bytes = 0;

  /// Returns the memory of a process whose tensors take `tensors` bytes, malloc's free blocks
  /// included.
  int64_t compute_total_bytes(int64_t tensors) const {
    return tensors + process_bytes + decoded_samples_bytes + library_bytes;
  }
};

/// Returns the limit of one process. `limit_gigabytes` is memory.limit_gb in 10⁹ bytes; nullopt for
/// `auto`.
HostMemoryLimit compute_host_memory_limit(memory::AvailableHostMemory available_memory,
                                          std::optional<double> limit_gigabytes, MemoryMode mode,
                                          const HostMemoryRequirements& memory_requirements);

/// Returns the limit, in bytes, of decoded samples in the loader's queue: a quarter of
/// limit_bytes − used_bytes, at least 1.
int64_t compute_prefetch_bytes(int64_t limit_bytes, int64_t used_bytes);

/// The input of make_cpu_plan().
struct CpuPlanRequest {
  std::string model;  ///< model name or path as the user wrote it
  Job job;            ///< job.world_size is replaced by workload.world_size
  MemoryMode mode = MemoryMode::kBalanced;
  memory::AvailableHostMemory available_memory;
  std::optional<double> limit_gigabytes;  ///< memory.limit_gb, in 10⁹ bytes; nullopt for `auto`
  HostMemoryRequirements memory_requirements;
  Workload workload;
  StepConstraints constraints;
  int64_t max_micro_batch_size = 1;             ///< the largest size to try unless the constraints set one
  std::vector<SampleLimit> sample_limits = {};  ///< limits that suggestions may lower, in this order
  bool with_suggestions = true;                 ///< compute CpuPlan::suggestions
  bool with_split_plan = true;                  ///< compute CpuPlan::split
};

/// The result of make_cpu_plan().
struct CpuPlan {
  std::string model;
  Job job;
  MemoryMode mode = MemoryMode::kBalanced;
  bool fits = false;
  StepConfig step_config;  ///< the first one that fits, or the one that needs the least memory
  /// Splits each step by the memory of its samples; nullopt: micro-batches of equal size.
  std::optional<SplitPlan> split = std::nullopt;
  int64_t peak_bytes = 0;           ///< peak of live tensors
  int64_t malloc_cached_bytes = 0;  ///< upper bound of malloc's free blocks at the peak
  DryRunDetail detail;
  HostMemoryLimit limit;
  Workload workload;
  SampleBatch worst_batch;              ///< the worst batch of the workload, given `step_config`
  std::vector<Suggestion> suggestions;  ///< verified by dry runs; empty if the plan fits
  PlanningStats planning_stats;

  /// Returns the peak of tensors with malloc's free blocks.
  int64_t needed_bytes() const { return peak_bytes + malloc_cached_bytes; }
  /// Returns the memory of the whole process.
  int64_t total_bytes() const { return limit.compute_total_bytes(needed_bytes()); }
  /// Returns the content of plan.json, with the keys of a GPU plan where they apply.
  nlohmann::ordered_json to_json() const;
};

/// Plans a CPU run. Takes the first StepConfig that fits, in this order:
/// 1. micro-batches from the largest to the smallest, without recomputation
/// 2. the smallest micro-batch with as few recomputed blocks as fit
/// 3. the smallest micro-batch with full recomputation, small loss chunks and more vision passes
///
/// Recomputation comes last because it costs time, while larger micro-batches are hardly faster on
/// a CPU.
///
/// Each StepConfig is dry-run: the training engine runs an optimizer step of the worst samples on
/// LibTorch's meta device (memory/meta_memory.h), which allocates and computes nothing. A dry run
/// takes about 0.1 s. Throws the exceptions of build_model(), and c10::Error if an operation does
/// not support the meta device.
CpuPlan make_cpu_plan(const CpuPlanRequest& request);

/// Dry-runs a StepConfig and returns its CpuPlan::needed_bytes(), the maximum over the workload's
/// worst batches. Throws the exceptions of make_cpu_plan().
int64_t measure_needed_cpu_bytes(const Job& job, const Workload& workload, const StepConfig& step_config);

}  // namespace vlmtrain::planner
