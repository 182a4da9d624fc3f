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

/// A dry-run child process on a virtual GPU. Requests and answers are lines of JSON (protocol.h). The
/// child may have several workers, each with its own connection. The child dies with this process
/// (watch_parent()). Not thread-safe, except for terminate().
class ChildProcess {
 public:
  /// Starts the child, or takes the one that this process inherited (spawned_child.h), and returns
  /// before it is ready. Throws UserError (kFailed) if the child cannot be started.
  explicit ChildProcess(const VirtualGpu& gpu, size_t workers = 1);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  size_t workers() const { return connections_.size(); }

  /// Sends a request. Ignores errors: the missing answer reveals a dead child.
  void send(const nlohmann::json& message, size_t worker = 0);
  /// Waits for the next answer of the first worker. Throws the worker's UserError, and
  /// InternalError if the child died.
  nlohmann::json receive();
  /// Does the same for any worker. Returns nullopt if the worker died or was never created.
  std::optional<nlohmann::json> try_receive(size_t worker);
  /// Returns whether receiving would not block, because an answer has begun or the worker is dead.
  bool has_answered(size_t worker) const;
  /// Reads and discards an answer. Returns false if the worker is dead.
  bool discard_answer(size_t worker);

  /// Kills the child. A thread that waits for an answer gets none.
  void terminate();

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  pid_t process_ = -1;
  std::vector<File> connections_;
};

/// Returns the next line with its line break, or nullopt at the end of the file, also in the middle
/// of a line.
std::optional<std::string> read_line(std::FILE* file);
void write_line(std::FILE* file, const nlohmann::json& json);

/// The conditions that end a dry-run process from outside.
struct ParentWatch {
  /// The process that reads the answers and whose main thread started this one, which dies with it;
  /// 0: another thread started it.
  pid_t parent = 0;
  /// Limit of this process's resident host memory. RLIMIT_AS cannot be used: the stub libraries
  /// reserve 16 TiB of addresses without backing memory.
  int64_t max_host_bytes = 0;
};

/// Lets the kernel kill this process when the thread that started it ends. Ends this process if
/// `parent` is already dead. Does nothing for 0.
void die_with_parent(pid_t parent);

/// Starts a thread that ends this process when stdin is closed, which happens when the parent dies,
/// or when its memory exceeds the limit. The latter is reported as an answer on stdout
/// (protocol.h). Makes this process the first choice of the kernel's OOM killer. Calls
/// die_with_parent(). To be called once, at the start of the process.
void watch_parent(const ParentWatch& watch);

}  // namespace vlmtrain::planner
