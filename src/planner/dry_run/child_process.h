#pragma once

#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

/// A dry-run child process on a virtual GPU. Requests and answers are lines of JSON (protocol.h).
/// The child may consist of several worker processes, each with its own connection and index from
/// 0. The child dies with this process (watch_parent()). Not thread-safe, except for terminate().
class ChildProcess {
 public:
  /// Starts a child with this many workers, or takes the child that this process inherited
  /// (virtual_gpu.h), which may have another number. Returns before the child is ready. Throws
  /// UserError (kFailed) if the child cannot be started, and the exceptions of
  /// check_address_space().
  explicit ChildProcess(const VirtualGpu& gpu, size_t num_workers = 1);
  /// Kills the child and waits for its end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  size_t num_workers() const { return connections_.size(); }

  /// Sends a request to a worker. Ignores errors: if the child is dead, receive() reports it.
  void send(const nlohmann::json& message, size_t worker = 0);
  /// Waits for the next answer of the first worker and returns it. Throws the UserError that the
  /// worker reported, and InternalError if the child died.
  nlohmann::json receive();
  /// Waits for the next answer of any worker and returns it. Returns nullopt if the worker died or
  /// was never created. Throws the UserError that the worker reported.
  std::optional<nlohmann::json> try_receive(size_t worker);
  /// Returns whether try_receive() would return without waiting, because at least part of an answer
  /// has arrived or the worker is dead.
  bool has_answered(size_t worker) const;
  /// Waits for the next answer and discards it. Returns false if the worker is dead.
  bool discard_answer(size_t worker);

  /// Kills the child. receive() throws InternalError in a thread that waits for an answer.
  void terminate();

 private:
  using FileHandle = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  pid_t child_pid_ = -1;
  std::vector<FileHandle> connections_;
};

/// Returns the next line with its line break. Returns nullopt at the end of the file, also if the
/// last line has no line break.
std::optional<std::string> read_line(std::FILE* file);
/// Writes JSON as one line and flushes.
void write_json_line(std::FILE* file, const nlohmann::json& json);

/// The conditions that end a dry-run process from outside.
struct TerminationConditions {
  /// The process whose main thread started this one. This process dies with it. 0 if another thread
  /// started this process.
  pid_t parent_pid = 0;
  /// Limit of this process's resident host memory, in bytes. RLIMIT_AS cannot be used, since the
  /// stub libraries reserve 16 TiB of address space without backing memory.
  int64_t max_host_bytes = 0;
};

/// Lets the kernel kill this process when the thread that started it ends. Ends this process if
/// `parent_pid` is already dead. Does nothing for 0.
void set_parent_death_signal(pid_t parent_pid);

/// Starts a thread that ends this process in two cases: stdin is closed, which happens when the
/// parent dies, or the memory of this process exceeds the limit, which it reports as an answer on
/// stdout (protocol.h). Makes this process the first choice of the kernel's OOM killer. Calls
/// set_parent_death_signal(). REQUIRES: called once, at the start of the process.
void watch_parent(const TerminationConditions& conditions);

}  // namespace vlmtrain::planner
