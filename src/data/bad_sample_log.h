#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain::data {

/// Warns of each dropped sample, but lets a data set that is bad throughout not flood the log: behind the twentieth
/// they are only counted.
class BadSampleLog {
 public:
  void warn(const std::string& message);
  /// Says how many were counted in silence since the last call, and how many of `samples` are dropped by now.
  void summarize(int64_t dropped, int64_t samples);

 private:
  int64_t num_logged_ = 0;
  int64_t num_suppressed_ = 0;
};

}  // namespace vlmtrain::data
