#include "vlmtrain/report/run_epochs.h"

#include <algorithm>
#include <cmath>

#include "report/json_value.h"

namespace vlmtrain::report {

namespace {

/// Names of tasks come from outside; a run with more has something else in them.
constexpr size_t kMostEpochTasks = 200;
/// The end of an epoch is a sum of shares.
constexpr double kEpochRounding = 1e-9;

double whole_passes(double passes) {
  return std::floor(passes + kEpochRounding);
}

nlohmann::ordered_json rate(double count, double seconds) {
  return seconds > 0 ? nlohmann::ordered_json(count / seconds) : nlohmann::ordered_json();
}

}  // namespace

void RunEpochs::Sum::add(const nlohmann::json& values) {
  const int64_t tokens = count_in(values, "label_tokens");
  label_tokens += tokens;
  samples += count_in(values, "samples");
  const double mean = number_in(values, "loss");
  if (!std::isfinite(mean) || tokens <= 0) return;
  loss += mean * static_cast<double>(tokens);
  loss_tokens += tokens;
}

nlohmann::ordered_json RunEpochs::Sum::loss_json() const {
  return loss_tokens > 0 ? nlohmann::ordered_json(loss / static_cast<double>(loss_tokens)) : nlohmann::ordered_json();
}

std::vector<nlohmann::ordered_json> RunEpochs::add(const nlohmann::json& line) {
  const int64_t step = count_in(line, "step");
  const double passes = number_in(line, "epoch");
  if (step <= last_step_ || !std::isfinite(passes)) return {};
  std::vector<nlohmann::ordered_json> rows;
  if (passes + kEpochRounding < passes_) {
    if (auto before = under_way()) rows.push_back(std::move(*before));
    sums_ = {};
    passes_ = 0;
  }
  last_step_ = step;
  take_in(line);
  const double whole = whole_passes(passes);
  const bool ends = whole > whole_passes(passes_);
  passes_ = passes;
  if (!ends) return rows;
  rows.push_back(row(static_cast<int64_t>(whole), /*complete=*/true));
  sums_ = {};
  return rows;
}

std::optional<nlohmann::ordered_json> RunEpochs::under_way() const {
  if (sums_.steps == 0) return std::nullopt;
  return row(static_cast<int64_t>(whole_passes(passes_)) + 1, /*complete=*/false);
}

void RunEpochs::take_in(const nlohmann::json& line) {
  if (sums_.steps++ == 0) sums_.first_step = last_step_;
  sums_.last_step = last_step_;
  sums_.total.add(line);
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (!values.is_object() || (sums_.tasks.size() >= kMostEpochTasks && !sums_.tasks.contains(name))) continue;
      sums_.tasks[name].add(values);
    }
  }
  sums_.tokens += count_in(line, "tokens");
  sums_.oom_splits += count_in(line, "oom_splits");
  sums_.foreseen_splits += count_in(line, "foreseen_splits");
  const auto skipped = line.find("skipped");
  if (skipped != line.end() && skipped->is_boolean() && skipped->get<bool>()) ++sums_.skipped_steps;
  if (const double seconds = number_in(line, "step_seconds"); std::isfinite(seconds)) sums_.seconds += seconds;
  const auto count = [&](Memory& memory, const char* peak, const char* mean) {
    // The kernel's count of what is resident may run ahead of its peak.
    memory.peak = std::max({memory.peak, count_in(line, peak), count_in(line, mean)});
    memory.sum += static_cast<double>(count_in(line, mean));
  };
  count(sums_.allocated, "allocated_peak_bytes", "allocated_peak_bytes");
  count(sums_.reserved, "reserved_peak_bytes", "reserved_peak_bytes");
  count(sums_.host, "host_peak_bytes", "host_bytes");
  const auto evaluation = line.find("evaluation");
  sums_.evaluation = evaluation != line.end() && evaluation->is_object() ? *evaluation : nlohmann::json();
}

nlohmann::ordered_json RunEpochs::row(int64_t epoch, bool complete) const {
  nlohmann::ordered_json row{{"step", sums_.last_step},      {"epoch", epoch},
                             {"complete", complete},         {"first_step", sums_.first_step},
                             {"last_step", sums_.last_step}, {"loss", sums_.total.loss_json()}};
  auto tasks = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : sums_.tasks) {
    tasks[name] = {{"loss", sum.loss_json()}, {"samples", sum.samples}, {"label_tokens", sum.label_tokens}};
  }
  row["tasks"] = std::move(tasks);
  row["samples"] = sums_.total.samples;
  row["tokens"] = sums_.tokens;
  row["label_tokens"] = sums_.total.label_tokens;
  row["seconds"] = sums_.seconds;
  row["samples_per_second"] = rate(static_cast<double>(sums_.total.samples), sums_.seconds);
  row["tokens_per_second"] = rate(static_cast<double>(sums_.tokens), sums_.seconds);
  row["oom_splits"] = sums_.oom_splits;
  row["foreseen_splits"] = sums_.foreseen_splits;
  row["skipped_steps"] = sums_.skipped_steps;
  const auto put = [&](const std::string& name, const Memory& memory) {
    row[name + "_peak_bytes"] = memory.peak;
    row[name + "_mean_bytes"] = std::llround(memory.sum / static_cast<double>(sums_.steps));
  };
  put("allocated", sums_.allocated);
  put("reserved", sums_.reserved);
  put("host", sums_.host);
  row["evaluation"] = sums_.evaluation;
  return row;
}

}  // namespace vlmtrain::report
