#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/memory/host.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// What a run on the CPU takes beside its tensors, as far as it follows from the run.
struct CpuMemoryNeeds {
  int64_t process_bytes = 0;     ///< the program itself and the data set's records
  int64_t sample_bytes = 0;      ///< the largest sample, decoded
  int64_t decode_bytes = 0;      ///< beside that, while a loader's thread makes it
  int64_t samples_per_step = 1;  ///< of this process
  int64_t world_size = 1;
  int64_t loader_threads = 1;  ///< of the loader
};

/// What the process of a run on the CPU may take of the host's memory, and for what.
struct CpuMemoryLimit {
  memory::AvailableHostMemory available;  ///< as found, or memory.limit_gb where that is less
  double margin_percent = 0;              ///< of room.bytes
  int64_t margin_bytes = 0;               ///< kept free
  int64_t process_bytes = 0;              ///< CpuMemoryNeeds::process_bytes
  int64_t prefetch_bytes = 0;             ///< most that decoded samples may take which wait for their step
  int64_t samples_bytes = 0;              ///< these, those of the step, and what the loader's threads are at
  int64_t libraries_bytes = 0;            ///< oneDNN's and MKL's own memory, stacks, the autograd graph
  int64_t tensor_bytes = 0;  ///< what is left for the tensors of the thread that trains, and for what malloc keeps

  /// Of a process whose tensors take so much at most, what malloc holds free for them included.
  int64_t total_bytes(int64_t tensors) const { return tensors + process_bytes + samples_bytes + libraries_bytes; }
};

CpuMemoryLimit compute_cpu_memory_limit(memory::AvailableHostMemory available, std::optional<double> limit_gigabytes,
                                        MemoryMode mode, const CpuMemoryNeeds& needs);

/// What decoded samples that wait for their step may take: a quarter of what is left. At least 1.
int64_t compute_prefetch_bytes(int64_t limit_bytes, int64_t used_bytes);

struct CpuPlanRequest {
  std::string model;  ///< as the user named it
  Job job;
  MemoryMode mode = MemoryMode::kBalanced;
  memory::AvailableHostMemory available;
  std::optional<double> limit_gigabytes;  ///< memory.limit_gb
  CpuMemoryNeeds needs;
  Workload workload;
  StepConstraints constraints;
  int64_t max_micro_batch_size = 1;             ///< that is tried where none is fixed
  std::vector<SampleLimit> sample_limits = {};  ///< the least change first
  bool with_suggestions = true;                 ///< false: nobody asks what would help where nothing fits
  bool with_split = true;                       ///< false: steps are cut otherwise, as by a table that is there already
};

/// How a run on the CPU does its steps, and what that takes.
struct CpuPlan {
  std::string model;
  Job job;
  MemoryMode mode = MemoryMode::kBalanced;
  bool fits = false;
  StepConfig step_config;  ///< where nothing fits: what needs least
  /// How each step is cut for its own samples; nothing where all are cut into micro-batches of as many.
  std::optional<SplitPlan> split = std::nullopt;
  int64_t peak_bytes = 0;           ///< tensors that live at once, at most
  int64_t malloc_cached_bytes = 0;  ///< what malloc holds free then, at most
  DryRunDetail detail;
  CpuMemoryLimit limit;
  Workload workload;
  SampleBatch worst;                    ///< of the workload's candidates, with these choices
  std::vector<Suggestion> suggestions;  ///< where it does not fit: with what it does, each rehearsed
  PlanningEffort effort;

  int64_t needed_bytes() const { return peak_bytes + malloc_cached_bytes; }
  int64_t total_bytes() const { return limit.total_bytes(needed_bytes()); }
  /// plan.json of a run on the CPU: the keys of a GPU's plan where they say the same.
  nlohmann::ordered_json to_json() const;
};

/// The first that fits of: micro-batches from the largest down with nothing recomputed; the smallest with ever more
/// blocks recomputed, as few as fit; with the tower's tiles in ever more passes and the loss in small chunks. On a CPU
/// a larger micro-batch is hardly faster, and a block recomputed is time lost.
///
/// Each is rehearsed: an optimizer step of the worst samples through the real engine, on LibTorch's meta device, where
/// operations make the tensors that they would make on the CPU, but compute nothing and take no memory
/// (memory/meta_memory.h); a tenth of a second each. Throws what building the model throws, and c10::Error where an
/// operation has no function for the meta device.
CpuPlan make_cpu_plan(const CpuPlanRequest& request);

/// CpuPlan::needed_bytes of a choice, over the workload's candidates.
int64_t dry_run_cpu_bytes(const Job& job, const Workload& workload, const StepConfig& step_config);

}  // namespace vlmtrain::planner
