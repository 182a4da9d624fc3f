#pragma once

#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>

namespace vlmtrain::vgpu {

/// What the card was asked to do, in order, a line each, in the file that VLMTRAIN_VGPU_TRACE names; what the file had
/// stays before it. A line is whole at once, so that a process that is killed leaves what it did. Thread-safe.
class Trace {
 public:
  Trace();

  bool is_enabled() const { return file_ >= 0; }

  /// The pieces with a blank between them as a line, if it is on.
  void add(std::initializer_list<std::string_view> pieces);

 private:
  std::mutex mutex_;
  int file_ = -1;
  std::string line_;
};

Trace& trace();

}  // namespace vlmtrain::vgpu
