#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "vlmtrain/report/metrics.h"
#include "vlmtrain/report/prediction.h"
#include "vlmtrain/report/run_report.h"

namespace vlmtrain::report {

/// A run folder like that of a GPU run, removed by the destructor.
class RunFolder {
 public:
  RunFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "vlmtrain_run_XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }

  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void append(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::app) << text;
  }
  void append_steps(int64_t first, int64_t last, int64_t total_steps) const {
    std::string lines;
    for (int64_t step = first; step <= last; ++step) lines += example_step(step, total_steps).to_json_line() + "\n";
    append("metrics.jsonl", lines);
  }
  void append_event(const RunEvent& event) const { append("events.jsonl", event.to_json_line() + "\n"); }
  void append_prediction(const Prediction& prediction) const {
    append("predictions.jsonl", prediction.to_json_line() + "\n");
  }

  /// Steps of a run that overfits: evaluated every `interval` steps, with the lowest loss in the
  /// middle.
  void append_evaluated_steps(int64_t steps, int64_t interval) const {
    std::string lines;
    double best = std::numeric_limits<double>::infinity();
    for (int64_t step = 1; step <= steps; ++step) {
      StepMetrics metrics = example_step(step, steps);
      if (step % interval == 0) {
        metrics.evaluation = example_evaluation(static_cast<double>(step) / static_cast<double>(steps));
        metrics.evaluation->is_best = metrics.evaluation->total.loss < best;
        best = std::min(best, metrics.evaluation->total.loss);
      }
      lines += metrics.to_json_line() + "\n";
    }
    append("metrics.jsonl", lines);
  }

  /// The lowest loss is 0.7, at half of the run.
  static EvaluationMetrics example_evaluation(double progress) {
    EvaluationMetrics evaluation;
    evaluation.total = {
        .loss = 0.7 + std::abs(progress - 0.5), .label_tokens = 90, .samples = 30, .exact_match = progress / 2};
    evaluation.tasks["count"] = {.loss = 0.5 + progress, .label_tokens = 30, .samples = 10, .exact_match = progress};
    evaluation.tasks["read"] = {.loss = 1 + progress, .label_tokens = 60, .samples = 20};
    evaluation.seconds = 12.5;
    evaluation.batch_size = 16;
    return evaluation;
  }

  static StepMetrics example_step(int64_t step, int64_t total_steps) {
    const double progress = static_cast<double>(step) / static_cast<double>(total_steps);
    StepMetrics metrics;
    metrics.step = step;
    metrics.total_steps = total_steps;
    metrics.epoch = 2 * progress;
    metrics.loss = 0.5 + 2 * std::exp(-5 * progress) + 0.05 * std::sin(static_cast<double>(step));
    metrics.learning_rate = 1e-4 * (1 - progress);
    metrics.grad_norm = 1 + std::cos(static_cast<double>(step));
    metrics.tokens = 4000 + step % 7;
    metrics.label_tokens = 300;
    metrics.num_media = 8;
    metrics.samples = 8;
    metrics.num_micro_batches = 2;
    metrics.micro_batch_sizes = {4, 4};
    metrics.step_seconds = 0.5;
    metrics.data_wait_seconds = 0.01;
    metrics.predicted_allocated_peak_bytes = 19'000'000'000;
    metrics.predicted_reserved_peak_bytes = 20'000'000'000;
    metrics.allocated_peak_bytes = 18'900'000'000 + step % 5 * 10'000'000;
    metrics.reserved_peak_bytes = 19'900'000'000;
    metrics.allocated_bytes = 9'000'000'000;
    metrics.reserved_bytes = 19'900'000'000;
    metrics.device_free_bytes = 4'000'000'000;
    metrics.host_bytes = metrics.host_peak_bytes = 3'000'000'000;
    metrics.tasks["count"] = {.loss = metrics.loss / 2, .label_tokens = 100, .samples = 4, .accuracy = progress};
    metrics.tasks["read"] = {.loss = metrics.loss * 2, .label_tokens = 200, .samples = 4, .weight = 2};
    return metrics;
  }

 private:
  std::filesystem::path path_;
};

inline nlohmann::json parse_page_data(const std::string& page) {
  const std::string opening = "<script type=\"application/json\" id=\"data\">";
  const size_t first = page.find(opening) + opening.size();
  return nlohmann::json::parse(page.substr(first, page.find("</script>", first) - first));
}
inline nlohmann::json render_and_parse(const RunFolder& run) {
  return parse_page_data(render_run_report(run.path()));
}

}  // namespace vlmtrain::report
