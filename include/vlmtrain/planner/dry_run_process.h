#pragma once

#include <memory>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

class ChildProcess;

/// A child process on a virtual GPU that dry-runs a job: this program with the stub libraries of CUDA
/// preloaded. Requests and answers are lines of JSON over sockets (src/planner/dry_run/protocol.h). On
/// machines with several processors it has two workers, so that two dry runs overlap. Not thread-safe.
class DryRunProcess {
 public:
  /// Starts the child and returns at once; the first dry run waits for it. Throws UserError (kFailed)
  /// if the child cannot be started.
  DryRunProcess(const Job& job, const VirtualGpu& gpu);
  ~DryRunProcess();
  DryRunProcess(const DryRunProcess&) = delete;
  DryRunProcess& operator=(const DryRunProcess&) = delete;

  /// Sets the job of the following dry runs.
  void set_job(const Job& job);

  /// Returns the result of planner::dry_run() in the child. Throws its UserError, and InternalError if
  /// the child dies.
  DryRunResult dry_run(const DryRunRequest& request);

  /// Starts a dry run on an idle worker, if there is one. A later dry_run() of the same request waits for
  /// its result. Changes no result.
  void prefetch(const DryRunRequest& request);

 private:
  /// The dry run of the second worker that no call has asked for yet.
  struct PrefetchState;

  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<PrefetchState> prefetch_;
};

/// Runs the child's side: answers each line of stdin on stdout until stdin ends. Further workers do the
/// same with their own connections. REQUIRES: is_on_virtual_gpu().
void serve_dry_runs();

}  // namespace vlmtrain::planner
