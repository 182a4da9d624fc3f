#pragma once

#include <memory>

#include "vlmtrain/planner/backend.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

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
