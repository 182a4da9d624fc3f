#include "vlmtrain/report/run_epochs.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::report {

namespace {

/// Maximum number of tasks, since the names in the file are untrusted. A real data set has fewer.
constexpr size_t kMaxEpochTasks = 200;
/// Tolerance of rounding at an epoch's end, where the number of epochs is a sum of fractions.
constexpr double kEpochTolerance = 1e-9;

double count_complete_epochs(double epochs) {
  return std::floor(epochs + kEpochTolerance);
}

/// Returns a rate per second; null if no time was measured.
nlohmann::ordered_json rate_to_json(double count, double seconds) {
  return seconds > 0 ? nlohmann::ordered_json(count / seconds) : nlohmann::ordered_json();
}

}  // namespace

void EpochSummaries::LossSums::add(const nlohmann::json& values) {
  const int64_t tokens = get_integer_or_zero(values, "label_tokens");
  label_tokens += tokens;
  samples += get_integer_or_zero(values, "samples");
  const double mean = get_number_or_nan(values, "loss");
  if (!std::isfinite(mean) || tokens <= 0) return;
  const double weight = get_label_weight(values);
  loss += mean * weight;
  finite_loss_weight += weight;
}

nlohmann::ordered_json EpochSummaries::LossSums::mean_loss_to_json() const {
  return finite_loss_weight > 0 ? nlohmann::ordered_json(loss / finite_loss_weight) : nlohmann::ordered_json();
}

std::vector<nlohmann::ordered_json> EpochSummaries::add(const nlohmann::json& line) {
  const int64_t step = get_integer_or_zero(line, "step");
  const double epochs = get_number_or_nan(line, "epoch");
  if (step <= last_step_ || !std::isfinite(epochs)) return {};
  std::vector<nlohmann::ordered_json> rows;
  if (epochs + kEpochTolerance < num_completed_epochs_) {
    if (auto previous_row = make_current_epoch_row()) rows.push_back(std::move(*previous_row));
    epoch_sums_ = {};
    num_completed_epochs_ = 0;
  }
  last_step_ = step;
  accumulate(line);
  const double num_full_epochs = count_complete_epochs(epochs);
  const bool is_epoch_end = num_full_epochs > count_complete_epochs(num_completed_epochs_);
  num_completed_epochs_ = epochs;
  if (!is_epoch_end) return rows;
  rows.push_back(make_epoch_row(static_cast<int64_t>(num_full_epochs), /*is_complete=*/true));
  epoch_sums_ = {};
  return rows;
}

std::optional<nlohmann::ordered_json> EpochSummaries::make_current_epoch_row() const {
  if (epoch_sums_.steps == 0) return std::nullopt;
  return make_epoch_row(static_cast<int64_t>(count_complete_epochs(num_completed_epochs_)) + 1, /*is_complete=*/false);
}

void EpochSummaries::accumulate(const nlohmann::json& line) {
  if (epoch_sums_.steps++ == 0) epoch_sums_.first_step = last_step_;
  epoch_sums_.last_step = last_step_;
  epoch_sums_.total.add(line);
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (!values.is_object() || (epoch_sums_.tasks.size() >= kMaxEpochTasks && !epoch_sums_.tasks.contains(name)))
        continue;
      epoch_sums_.tasks[name].add(values);
    }
  }
  epoch_sums_.tokens += get_integer_or_zero(line, "tokens");
  epoch_sums_.num_oom_splits += get_integer_or_zero(line, "oom_splits");
  epoch_sums_.num_look_ahead_splits +=
      get_integer_or_zero(line, io::find_field_name(line, {"forecast_splits", "foreseen_splits"}));
  const auto skipped = line.find("skipped");
  if (skipped != line.end() && skipped->is_boolean() && skipped->get<bool>()) ++epoch_sums_.num_skipped_steps;
  if (const double seconds = get_number_or_nan(line, "step_seconds"); std::isfinite(seconds))
    epoch_sums_.seconds += seconds;
  const auto accumulate_memory = [&](EpochMemoryStats& memory, const char* peak, const char* mean) {
    // The kernel updates the peak later than the resident size.
    memory.peak = std::max({memory.peak, get_integer_or_zero(line, peak), get_integer_or_zero(line, mean)});
    memory.sum += static_cast<double>(get_integer_or_zero(line, mean));
  };
  accumulate_memory(epoch_sums_.allocated, "allocated_peak_bytes", "allocated_peak_bytes");
  accumulate_memory(epoch_sums_.reserved, "reserved_peak_bytes", "reserved_peak_bytes");
  accumulate_memory(epoch_sums_.host, "host_peak_bytes", "host_bytes");
  const auto evaluation = line.find("evaluation");
  epoch_sums_.evaluation = evaluation != line.end() && evaluation->is_object() ? *evaluation : nlohmann::json();
}

nlohmann::ordered_json EpochSummaries::make_epoch_row(int64_t epoch, bool is_complete) const {
  nlohmann::ordered_json row{{"step", epoch_sums_.last_step},
                             {"epoch", epoch},
                             {"complete", is_complete},
                             {"first_step", epoch_sums_.first_step},
                             {"last_step", epoch_sums_.last_step},
                             {"loss", epoch_sums_.total.mean_loss_to_json()}};
  auto tasks = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : epoch_sums_.tasks) {
    tasks[name] = {{"loss", sum.mean_loss_to_json()}, {"samples", sum.samples}, {"label_tokens", sum.label_tokens}};
  }
  row["tasks"] = std::move(tasks);
  row["samples"] = epoch_sums_.total.samples;
  row["tokens"] = epoch_sums_.tokens;
  row["label_tokens"] = epoch_sums_.total.label_tokens;
  row["seconds"] = epoch_sums_.seconds;
  row["samples_per_second"] = rate_to_json(static_cast<double>(epoch_sums_.total.samples), epoch_sums_.seconds);
  row["tokens_per_second"] = rate_to_json(static_cast<double>(epoch_sums_.tokens), epoch_sums_.seconds);
  row["oom_splits"] = epoch_sums_.num_oom_splits;
  row["forecast_splits"] = epoch_sums_.num_look_ahead_splits;
  row["skipped_steps"] = epoch_sums_.num_skipped_steps;
  const auto add_memory_fields = [&](const std::string& name, const EpochMemoryStats& memory) {
    row[name + "_peak_bytes"] = memory.peak;
    row[name + "_mean_bytes"] = std::llround(memory.sum / static_cast<double>(epoch_sums_.steps));
  };
  add_memory_fields("allocated", epoch_sums_.allocated);
  add_memory_fields("reserved", epoch_sums_.reserved);
  add_memory_fields("host", epoch_sums_.host);
  row["evaluation"] = epoch_sums_.evaluation;
  io::add_field_aliases(row, {{"forecast_splits", "foreseen_splits"}});
  return row;
}

}  // namespace vlmtrain::report
