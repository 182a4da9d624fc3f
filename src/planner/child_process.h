#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::planner {

/// This program once more, as `vlmtrain rehearse`, on a virtual card; requests and answers are lines of JSON
/// (planner/protocol.h). Its end ends the child, and so does this process's, however it comes (planner/parent_watch.h).
/// Apart from end(), for one thread at a time.
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

  /// A file descriptor that is closed with it.
  class Descriptor {
   public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return number_; }
    void set(int number) { number_ = number; }

   private:
    int number_;
  };

  Descriptor requests_{-1};
  File answers_{nullptr, std::fclose};
  pid_t process_ = -1;
};

/// In a child's environment: the process that it dies with, or 0.
inline constexpr const char* kParentVariable = "VLMTRAIN_REHEARSES_FOR";

/// Nothing at the end of the file.
std::optional<std::string> read_line(std::FILE* file);
void write_line(std::FILE* file, const nlohmann::json& json);

}  // namespace vlmtrain::planner
