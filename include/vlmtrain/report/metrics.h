#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace vlmtrain::report {

/// One optimizer step as metrics.jsonl has it.
struct StepMetrics {
  int64_t step = 0;  ///< from 1
  double epoch = 0;  ///< passes over the data set after this step
  double loss = 0;   ///< mean over the label tokens of the global batch
  double learning_rate = 0;
  double grad_norm = 0;  ///< before clipping
  int64_t tokens = 0;
  int64_t label_tokens = 0;
  int64_t images = 0;
  int64_t samples = 0;
  int64_t micro_batches = 0;
  int64_t oom_splits = 0;
  double step_seconds = 0;
  double data_wait_seconds = 0;                 ///< share of step_seconds in which the step waited for samples
  std::optional<int64_t> predicted_peak_bytes;  ///< nothing without a plan
  int64_t allocated_peak_bytes = 0;             ///< of the device; 0 on the CPU
  int64_t reserved_peak_bytes = 0;
  int64_t host_peak_bytes = 0;

  double tokens_per_second() const { return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0; }
  std::string to_json_line() const;
};

/// A file of JSON lines, one a step, flushed after each. A run that goes on at step N first drops the lines behind it,
/// which the interrupted run wrote after its last checkpoint.
class StepLines {
 public:
  /// Keeps the lines of `path` whose `step` is at most `resumed_step`. Throws UserError (kFailed) if it cannot be
  /// written.
  StepLines(std::filesystem::path path, int64_t resumed_step);
  void append(const std::string& json_line);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace vlmtrain::report
