#pragma once

#include <memory>

#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

class ChildProcess;

/// A child process on a virtual card that rehearses a job: this program once more, with stand-ins for the CUDA
/// libraries preloaded. Requests and answers are lines of JSON over sockets (src/planner/protocol.h). It has two
/// workers where there are two processors, so that a rehearsal may be begun beside another. Not thread-safe.
class DryRunProcess {
 public:
  /// Starts the child and returns at once; the first rehearsal waits for it. Throws UserError (kFailed) where it cannot
  /// be started.
  DryRunProcess(const Job& job, const VirtualGpu& gpu);
  ~DryRunProcess();
  DryRunProcess(const DryRunProcess&) = delete;
  DryRunProcess& operator=(const DryRunProcess&) = delete;

  /// Further rehearsals are of another job.
  void set_job(const Job& job);

  /// Throws UserError as the child does, and InternalError if the child dies.
  DryRunResult dry_run(const DryRunRequest& request);

  /// Has a worker with nothing else to do begin what will probably be asked for: dry_run() then waits for it. Changes
  /// no outcome.
  void prefetch(const DryRunRequest& request);

 private:
  /// What the second worker is doing, or has done and nobody has asked for.
  struct PrefetchState;

  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<PrefetchState> prefetch_;
};

/// The child's side: answers every line of stdin on stdout until the end of stdin, and so does each further worker with
/// its own connection. REQUIRES: is_on_virtual_gpu().
void serve_dry_runs();

}  // namespace vlmtrain::planner
