#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// Sums of a run's steps by epoch, from the lines of metrics.jsonl in order. A step belongs to the
/// epoch in which it ends; a step that ends several epochs belongs to the last one. After a change
/// of the data set, epochs count from 1 again, and the unfinished epoch gets its own row.
///
/// A row of epochs.jsonl: {"step": its last step, "epoch": from 1, "complete", "first_step",
/// "last_step", "loss": mean over the label tokens, "tasks": {name: {"loss", "samples",
/// "label_tokens"}}, "samples", "tokens", "label_tokens", "seconds": sum of the steps,
/// "samples_per_second", "tokens_per_second", "oom_splits", "forecast_splits", "skipped_steps",
/// "allocated_peak_bytes", "allocated_mean_bytes": mean of the steps' peaks, "reserved_peak_bytes",
/// "reserved_mean_bytes", "host_peak_bytes", "host_mean_bytes": mean of the resident bytes after
/// each step, "evaluation": after the last step, or null}.
class EpochSummaries {
 public:
  /// Adds a line. Returns the rows of the epochs that end with it or, if the data set changed,
  /// before it. Ignores damaged lines, and steps that are not after the last one.
  std::vector<nlohmann::ordered_json> add(const nlohmann::json& line);
  /// Returns the row of the steps since the last complete epoch; nullopt without such steps.
  std::optional<nlohmann::ordered_json> make_current_epoch_row() const;

 private:
  /// The sums over the label tokens of a task or of all samples.
  struct LossSums {
    double loss = 0;                // sum of mean loss · weight of the label tokens
    double finite_loss_weight = 0;  // weight of the label tokens of the steps with a finite loss
    int64_t label_tokens = 0;
    int64_t samples = 0;

    /// Adds the values of a step: {"loss", "label_tokens", "label_weight", "samples"}.
    void add(const nlohmann::json& values);
    /// Returns the mean loss; null without finite losses.
    nlohmann::ordered_json mean_loss_to_json() const;
  };
  /// Peak and mean of a kind of memory over the steps of an epoch.
  struct EpochMemoryStats {
    int64_t peak = 0;  // bytes
    double sum = 0;    // of one number of bytes per step, for the mean
  };
  /// The sums of an epoch.
  struct EpochSums {
    int64_t first_step = 0;
    int64_t last_step = 0;
    int64_t steps = 0;
    LossSums total{};
    std::map<std::string, LossSums> tasks{};
    int64_t tokens = 0;
    int64_t num_oom_splits = 0;
    int64_t num_look_ahead_splits = 0;
    int64_t num_skipped_steps = 0;
    double seconds = 0;
    EpochMemoryStats allocated{}, reserved{}, host{};
    nlohmann::json evaluation{};
  };

  /// Adds a line to epoch_sums_.
  void accumulate(const nlohmann::json& line);
  /// Returns the row of epoch_sums_.
  nlohmann::ordered_json make_epoch_row(int64_t epoch, bool is_complete) const;

  EpochSums epoch_sums_;
  double num_completed_epochs_ = 0;  // passes over the data set after the last step
  int64_t last_step_ = 0;
};

}  // namespace vlmtrain::report
