#pragma once

#include <memory>

#include "vlmtrain/planner/rehearsal.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::planner {

class ChildProcess;

/// A child process on a virtual card that rehearses a job: this program once more, with stand-ins for the CUDA
/// libraries preloaded. Requests and answers are lines of JSON over pipes (src/planner/protocol.h). Not thread-safe.
class RehearsalProcess {
 public:
  /// Starts the child and returns at once; the first rehearsal waits for it. Throws UserError (kFailed) where it cannot
  /// be started.
  RehearsalProcess(const Job& job, const VirtualCard& card);
  ~RehearsalProcess();
  RehearsalProcess(const RehearsalProcess&) = delete;
  RehearsalProcess& operator=(const RehearsalProcess&) = delete;

  /// Further rehearsals are of another job.
  void set_job(const Job& job);

  /// Throws UserError as the child does, and InternalError if the child dies.
  Outcome rehearse(const RehearsalRequest& request);

 private:
  std::unique_ptr<ChildProcess> child_;
};

/// The child's side: answers every line of stdin on stdout until the end of stdin. REQUIRES: on_virtual_card().
void serve_rehearsals();

}  // namespace vlmtrain::planner
