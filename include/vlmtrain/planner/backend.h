#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/target.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// The properties of a backend that the search for a StepConfig depends on.
struct BackendTraits {
  /// Results have costs (DryRunResult::costs), so that plans minimize the predicted time. Otherwise
  /// every recomputed block takes longer than any number of micro-batches.
  bool predicts_time = true;
  /// Dry runs are cheap: the search starts with the fastest StepConfig instead of probes, and dry-runs
  /// all worst batches instead of looking for the heaviest one.
  bool is_cheap = false;
  /// The detail of a dry run takes several times as long as the dry run.
  bool is_detail_expensive = false;
  /// Free memory is fragmented, so that a step's peak depends on the sizes of earlier steps.
  bool fragments_memory = true;
  /// Number of micro-batches after which further ones do not change the peak of a step.
  int64_t num_distinct_micro_batches = 2;
  /// Rows of the smallest loss chunks to try.
  int64_t min_loss_chunk_rows = 1;
};

/// Dry-runs a job for a device: on the virtual GPU in a child process (DryRunProcess), or on LibTorch's
/// meta device in this process. A new kind of device is a class and a case in make_backend(). Not
/// thread-safe.
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual const BackendTraits& traits() const = 0;

  /// Sets the job of the following dry runs.
  virtual void set_job(const Job& job) = 0;

  /// Dry-runs a request. Throws the exceptions of build_model().
  virtual DryRunResult dry_run(const DryRunRequest& request) = 0;

  /// Starts a dry run in the background if the backend can. A later dry_run() of the same request
  /// returns this result. Affects only the duration, not the results.
  virtual void prefetch(const DryRunRequest& /*request*/) {}

  /// Returns the number of blocks of the job's model, and the memory of weights, gradients and
  /// optimizer state; nullopt if only the detail of a dry run has them.
  struct ModelSizes {
    models::RecomputeBlockCounts blocks;
    int64_t persistent_bytes = 0;
  };
  virtual std::optional<ModelSizes> find_model_sizes() { return std::nullopt; }
};

/// Returns the backend for dry runs of `job` on `target`. Throws UserError (kFailed) if the child
/// process of a GPU's dry runs cannot be started, and, for a host, the exceptions of build_model().
std::unique_ptr<Backend> make_backend(const Job& job, const PlanTarget& target);

class ChildProcess;

/// A child process that dry-runs a job on a virtual GPU. The child is this program with the stub
/// libraries of CUDA preloaded. Requests and answers are lines of JSON over sockets
/// (src/planner/dry_run/protocol.h). On machines with several processors the child has two worker
/// processes, so that two dry runs overlap. Not thread-safe.
class DryRunProcess final : public Backend {
 public:
  /// Starts the child and returns before it is ready; the first dry run waits for it. Throws
  /// UserError (kFailed) if the child cannot be started.
  DryRunProcess(const Job& job, const VirtualGpu& gpu);
  /// Kills the child.
  ~DryRunProcess() override;

  const BackendTraits& traits() const override;

  /// Sets the job of the following dry runs. Discards a prefetched result.
  void set_job(const Job& job) override;

  /// Runs planner::dry_run() in the child and waits for the result. Throws the UserError of the
  /// child's dry run, and InternalError if the child dies.
  DryRunResult dry_run(const DryRunRequest& request) override;

  /// Starts a dry run on the second worker if it is idle, otherwise does nothing.
  void prefetch(const DryRunRequest& request) override;

 private:
  /// The dry run on the second worker whose result no dry_run() call has fetched yet.
  struct PrefetchState;

  std::unique_ptr<ChildProcess> child_process_;
  std::unique_ptr<PrefetchState> prefetch_state_;
};

/// The main function of the child: answers each line of stdin on stdout until stdin ends. Forks the
/// second worker, which does the same on its own connection. REQUIRES: is_on_virtual_gpu(); called
/// once, before any dry run in this process.
void serve_dry_runs();

}  // namespace vlmtrain::planner
