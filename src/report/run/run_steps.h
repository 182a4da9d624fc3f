#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "report/run/run_evaluations.h"

namespace vlmtrain::report {

/// A bin of a curve: the values of consecutive steps.
struct CurveBin {
  double sum = 0;  ///< of value · weight
  double weight = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  /// Adds a value with its weight.
  void add(double value, double value_weight);
  /// Adds the values of another bin.
  void add(const CurveBin& other);
};

/// A curve of a number over the steps of a run, in a limited number of bins. Each bin has the mean,
/// minimum and maximum of its steps, so that no spike is lost.
class Curve {
 public:
  /// Adds a value to a bin. Ignores values that are not finite, and weights that are not positive.
  void add(size_t bin, double value, double weight = 1);
  /// Merges neighboring bins 2i and 2i + 1 to bin i.
  void merge_bin_pairs();

  bool empty() const { return bins_.empty(); }
  /// Returns {"mean":[…],"min":[…],"max":[…]} for `num_bins` bins, with null for bins without a
  /// value. "min" and "max" are omitted if they equal the mean. If `is_summed`, returns only
  /// "mean", with sums instead of means and 0 instead of null.
  std::string to_json(size_t num_bins, bool is_summed = false) const;

 private:
  std::vector<CurveBin> bins_;
};

/// The steps in metrics.jsonl. The memory does not grow with the number of steps.
class RunSteps {
 public:
  /// Adds a line. Ignores steps that are not after the last one.
  void add(const nlohmann::json& line);

  int64_t last_step() const { return last_step_; }
  int64_t total_steps() const { return total_steps_; }

  /// Returns totals of the run and means of its last steps, for the headline.
  nlohmann::json make_summary_json() const;
  /// Returns the rows of the tasks by decreasing label tokens: {"name", "samples", "label_tokens",
  /// "loss" and "accuracy" of the last steps, "weight"}. The curves have the same order.
  nlohmann::json tasks_to_json() const;
  nlohmann::json evaluations_to_json() const { return evaluations_.to_json(); }
  /// Returns the curves as JSON: {"width": steps per bin, "first": first step of the first bin,
  /// "bins": number of bins, "loss": {…}, …, "task_loss": [{…}, …], "task_accuracy": [{…}, …], and
  /// "task_weight": [{…}, …] if weights change}.
  std::string curves_to_json() const;

 private:
  /// The curves and sums of a task.
  struct Task {
    Curve loss;
    Curve accuracy;
    Curve weight_curve;
    int64_t samples = 0;
    int64_t label_tokens = 0;
    double weight = 1;
    bool has_weight_changes = false;
    std::deque<double> recent_losses{};
    std::deque<double> recent_accuracies{};
  };
  /// The values of a recent step; NaN if the line has none.
  struct RecentStep {
    double loss;
    double tokens;
    double seconds;
  };
  /// Curves derived from lists or quotients, in addition to kCurveFields.
  enum DerivedCurve : uint8_t { kMicroBatchSize, kDataWaitShare, kSkippedSteps, kNumDerivedCurves };
  static constexpr size_t kMaxCurveFields = 32;

  size_t assign_bin_index(int64_t step);
  void set_rank_wait_seconds(const nlohmann::json& line);
  void add_task_values(size_t bin, const std::string& name, const nlohmann::json& values);
  std::vector<const std::pair<const std::string, Task>*> list_tasks_by_label_tokens() const;

  int64_t steps_per_bin_ = 1;
  std::array<Curve, kMaxCurveFields> curves_;
  std::array<Curve, kNumDerivedCurves> derived_curves_;
  std::map<std::string, Task> tasks_;
  RunEvaluations evaluations_;

  int64_t first_step_ = 0;  // 0 before the first line
  int64_t last_step_ = 0;
  int64_t total_steps_ = 0;
  double epoch_ = 0;
  int64_t num_recorded_steps_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_label_tokens_ = 0;
  int64_t num_samples_ = 0;
  int64_t num_images_ = 0;
  int64_t num_volumes_ = 0;
  int64_t num_oom_splits_ = 0;
  int64_t num_look_ahead_splits_ = 0;
  int64_t num_skipped_steps_ = 0;
  double total_step_seconds_ = 0;
  std::vector<double> rank_wait_seconds_;  // of the newest line
  int64_t allocated_peak_bytes_ = 0;
  int64_t reserved_peak_bytes_ = 0;
  int64_t predicted_allocated_peak_bytes_ = 0;
  int64_t predicted_reserved_peak_bytes_ = 0;
  int64_t host_peak_bytes_ = 0;
  std::deque<RecentStep> recent_steps_;
};

}  // namespace vlmtrain::report
