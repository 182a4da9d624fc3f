#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// This program once more, as `vlmtrain rehearse`, on a virtual card; requests and answers are lines of JSON
/// (planner/protocol.h). It may have several workers, which work at the same time, each with a connection of its own.
/// Its end ends them, and so does this process's, however it comes (planner/parent_watch.h).
/// Apart from terminate(), for one thread at a time.
class ChildProcess {
 public:
  /// Returns at once, before the child is ready. Throws UserError (kFailed) where it cannot be started. A child that
  /// was started before this process became this program is taken as it is (planner/spawned_child.h).
  explicit ChildProcess(const VirtualGpu& gpu, size_t workers = 1);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  size_t workers() const { return connections_.size(); }

  /// Not seen to fail: a child that died is noticed when its answer is missing.
  void send(const nlohmann::json& message, size_t worker = 0);
  /// Waits for the next answer of the first worker. Throws UserError as it did, and InternalError if it died.
  nlohmann::json receive();
  /// The same of a further worker; nothing where that has died, or could not be made.
  std::optional<nlohmann::json> try_receive(size_t worker);
  /// Whether these would not have to wait for the beginning of an answer, or there will be none.
  bool has_answered(size_t worker) const;
  /// Reads an answer, whatever it says; false where there is none any more.
  bool discard_answer(size_t worker);

  /// Kills the child; an answer that another thread waits for does not come any more.
  void terminate();

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  pid_t process_ = -1;
  std::vector<File> connections_;
};

/// Nothing at the end of the file, which may be in the middle of a line.
std::optional<std::string> read_line(std::FILE* file);
void write_line(std::FILE* file, const nlohmann::json& json);

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
