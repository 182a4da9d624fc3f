#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::planner {

/// This program once more, as `vlmtrain rehearse`, on a virtual card; requests and answers are lines of JSON over pipes
/// (planner/protocol.h). Its end ends the child. Apart from end(), for one thread at a time.
class ChildProcess {
 public:
  /// Returns at once, before the child is ready. Throws UserError (kFailed) where it cannot be started.
  explicit ChildProcess(const VirtualCard& card);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Not seen to fail: a child that died is noticed when its answer is missing.
  void send(const nlohmann::json& message);
  /// Waits for the next answer. Throws UserError as the child did, and InternalError if it died.
  nlohmann::json receive();

  /// Kills the child; an answer that another thread waits for does not come any more.
  void end();

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  File requests_{nullptr, std::fclose};
  File answers_{nullptr, std::fclose};
  pid_t process_ = -1;
};

/// Nothing at the end of the file.
std::optional<std::string> read_line(std::FILE* file);
void write_line(std::FILE* file, const nlohmann::json& json);

}  // namespace vlmtrain::planner
