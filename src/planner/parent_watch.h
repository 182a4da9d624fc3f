#pragma once

#include <sys/types.h>

#include <cstdint>

namespace vlmtrain::planner {

/// What ends a rehearsal process from outside.
struct ParentWatch {
  /// The process that reads the answers, and whose main thread started this one; 0 where another thread did. This
  /// process is killed with it, at once.
  pid_t parent = 0;
  /// The host memory that this process may take, resident. There is no limit of the system's for it: the stand-ins
  /// reserve 16 TiB of addresses that nothing ever stands at, so RLIMIT_AS is out of the question.
  int64_t max_host_bytes = 0;
};

/// The kernel kills this process with the thread that started it, if that is the main thread of `parent`; 0: it does
/// not. Ends this process where `parent` has gone already.
void die_with_parent(pid_t parent);

/// Starts a thread that ends this process when the other end of stdin is closed, which is when the parent is gone, and
/// when its memory is above the limit; that it writes to stdout as an answer (planner/protocol.h). Asks the kernel to
/// take this process before others when memory is short. Calls die_with_parent(). For a process's start.
void watch_parent(const ParentWatch& watch);

}  // namespace vlmtrain::planner
