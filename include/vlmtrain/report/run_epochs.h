#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// Sums of a run's steps by epoch, from the lines of metrics.jsonl in their order. A step belongs to the epoch in which
/// it ends; one that passes several ends the last of them. Where the data set was changed on the way, epochs count from
/// 1 again, and the one that was under way is a row by itself.
///
/// A row, as epochs.jsonl has it: {"step": its last step, "epoch": from 1, "complete", "first_step", "last_step",
/// "loss": mean over the label tokens, "tasks": {name: {"loss", "samples", "label_tokens"}}, "samples", "tokens",
/// "label_tokens", "seconds": of steps, "samples_per_second", "tokens_per_second", "oom_splits", "forecast_splits",
/// "skipped_steps", "allocated_peak_bytes", "allocated_mean_bytes": of the steps' peaks, "reserved_peak_bytes",
/// "reserved_mean_bytes", "host_peak_bytes", "host_mean_bytes": of what is resident at the steps' ends, "evaluation":
/// that of the last step, or null}
class EpochSummaries {
 public:
  /// The rows of what ends with this line or, where the data set was changed, before it. A line that is damaged, or of
  /// a step that was there already, is left out.
  std::vector<nlohmann::ordered_json> add(const nlohmann::json& line);
  /// Of the steps since the last complete epoch; nothing where there are none.
  std::optional<nlohmann::ordered_json> current_epoch() const;

 private:
  struct LossSum {
    double loss = 0;  // times label tokens
    int64_t loss_tokens = 0;
    int64_t label_tokens = 0;
    int64_t samples = 0;

    void add(const nlohmann::json& values);
    nlohmann::ordered_json loss_json() const;
  };
  struct MemoryStats {
    int64_t peak = 0;
    double sum = 0;
  };
  struct Epoch {
    int64_t first_step = 0;
    int64_t last_step = 0;
    int64_t steps = 0;
    LossSum total{};
    std::map<std::string, LossSum> tasks{};
    int64_t tokens = 0;
    int64_t oom_splits = 0;
    int64_t forecast_splits = 0;
    int64_t skipped_steps = 0;
    double seconds = 0;
    MemoryStats allocated{}, reserved{}, host{};
    nlohmann::json evaluation{};
  };

  void accumulate(const nlohmann::json& line);
  nlohmann::ordered_json make_row(int64_t epoch, bool complete) const;

  Epoch epoch_;
  double epochs_ = 0;  // after the last step
  int64_t last_step_ = 0;
};

}  // namespace vlmtrain::report
