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

double round_down_epochs(double epochs) {
  return std::floor(epochs + kEpochTolerance);
}

/// Returns a rate per second; null if no time was measured.
nlohmann::ordered_json compute_rate_per_second(double count, double seconds) {
  return seconds > 0 ? nlohmann::ordered_json(count / seconds) : nlohmann::ordered_json();
}

}  // namespace

void EpochSummaries::LossSum::add(const nlohmann::json& values) {
  const int64_t tokens = get_integer(values, "label_tokens");
  label_tokens += tokens;
  samples += get_integer(values, "samples");
  const double mean = get_number(values, "loss");
  if (!std::isfinite(mean) || tokens <= 0) return;
  loss += mean * static_cast<double>(tokens);
  finite_loss_tokens += tokens;
}

nlohmann::ordered_json EpochSummaries::LossSum::mean_loss_to_json() const {
  return finite_loss_tokens > 0 ? nlohmann::ordered_json(loss / static_cast<double>(finite_loss_tokens))
                                : nlohmann::ordered_json();
}

std::vector<nlohmann::ordered_json> EpochSummaries::add(const nlohmann::json& line) {
  const int64_t step = get_integer(line, "step");
  const double epochs = get_number(line, "epoch");
  if (step <= last_step_ || !std::isfinite(epochs)) return {};
  std::vector<nlohmann::ordered_json> rows;
  if (epochs + kEpochTolerance < completed_epochs_) {
    if (auto previous_row = make_current_epoch_row()) rows.push_back(std::move(*previous_row));
    epoch_ = {};
    completed_epochs_ = 0;
  }
  last_step_ = step;
  accumulate(line);
  const double whole_epochs = round_down_epochs(epochs);
  const bool is_epoch_end = whole_epochs > round_down_epochs(completed_epochs_);
  completed_epochs_ = epochs;
  if (!is_epoch_end) return rows;
  rows.push_back(make_row(static_cast<int64_t>(whole_epochs), /*complete=*/true));
  epoch_ = {};
  return rows;
}

std::optional<nlohmann::ordered_json> EpochSummaries::make_current_epoch_row() const {
  if (epoch_.steps == 0) return std::nullopt;
  return make_row(static_cast<int64_t>(round_down_epochs(completed_epochs_)) + 1, /*complete=*/false);
}

void EpochSummaries::accumulate(const nlohmann::json& line) {
  if (epoch_.steps++ == 0) epoch_.first_step = last_step_;
  epoch_.last_step = last_step_;
  epoch_.total.add(line);
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (!values.is_object() || (epoch_.tasks.size() >= kMaxEpochTasks && !epoch_.tasks.contains(name))) continue;
      epoch_.tasks[name].add(values);
    }
  }
  epoch_.tokens += get_integer(line, "tokens");
  epoch_.oom_splits += get_integer(line, "oom_splits");
  epoch_.forecast_splits += get_integer(line, io::find_field_name(line, {"forecast_splits", "foreseen_splits"}));
  const auto skipped = line.find("skipped");
  if (skipped != line.end() && skipped->is_boolean() && skipped->get<bool>()) ++epoch_.skipped_steps;
  if (const double seconds = get_number(line, "step_seconds"); std::isfinite(seconds)) epoch_.seconds += seconds;
  const auto add_memory = [&](MemoryStats& memory, const char* peak, const char* mean) {
    // The kernel updates the peak later than the resident size.
    memory.peak = std::max({memory.peak, get_integer(line, peak), get_integer(line, mean)});
    memory.sum += static_cast<double>(get_integer(line, mean));
  };
  add_memory(epoch_.allocated, "allocated_peak_bytes", "allocated_peak_bytes");
  add_memory(epoch_.reserved, "reserved_peak_bytes", "reserved_peak_bytes");
  add_memory(epoch_.host, "host_peak_bytes", "host_bytes");
  const auto evaluation = line.find("evaluation");
  epoch_.evaluation = evaluation != line.end() && evaluation->is_object() ? *evaluation : nlohmann::json();
}

nlohmann::ordered_json EpochSummaries::make_row(int64_t epoch, bool complete) const {
  nlohmann::ordered_json row{{"step", epoch_.last_step},      {"epoch", epoch},
                             {"complete", complete},          {"first_step", epoch_.first_step},
                             {"last_step", epoch_.last_step}, {"loss", epoch_.total.mean_loss_to_json()}};
  auto tasks = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : epoch_.tasks) {
    tasks[name] = {{"loss", sum.mean_loss_to_json()}, {"samples", sum.samples}, {"label_tokens", sum.label_tokens}};
  }
  row["tasks"] = std::move(tasks);
  row["samples"] = epoch_.total.samples;
  row["tokens"] = epoch_.tokens;
  row["label_tokens"] = epoch_.total.label_tokens;
  row["seconds"] = epoch_.seconds;
  row["samples_per_second"] = compute_rate_per_second(static_cast<double>(epoch_.total.samples), epoch_.seconds);
  row["tokens_per_second"] = compute_rate_per_second(static_cast<double>(epoch_.tokens), epoch_.seconds);
  row["oom_splits"] = epoch_.oom_splits;
  row["forecast_splits"] = epoch_.forecast_splits;
  row["skipped_steps"] = epoch_.skipped_steps;
  const auto add_bytes = [&](const std::string& name, const MemoryStats& memory) {
    row[name + "_peak_bytes"] = memory.peak;
    row[name + "_mean_bytes"] = std::llround(memory.sum / static_cast<double>(epoch_.steps));
  };
  add_bytes("allocated", epoch_.allocated);
  add_bytes("reserved", epoch_.reserved);
  add_bytes("host", epoch_.host);
  row["evaluation"] = epoch_.evaluation;
  io::add_field_aliases(row, {{"forecast_splits", "foreseen_splits"}});
  return row;
}

}  // namespace vlmtrain::report
