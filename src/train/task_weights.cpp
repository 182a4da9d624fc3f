#include "train/task_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"

namespace vlmtrain::train {

namespace {

std::vector<double> normalize_mean(std::vector<double> weights, const std::vector<int64_t>& samples) {
  double sum = 0;
  double count = 0;
  for (size_t task = 0; task < weights.size(); ++task) {
    sum += weights[task] * static_cast<double>(samples[task]);
    count += static_cast<double>(samples[task]);
  }
  for (double& weight : weights) weight *= count / sum;
  return weights;
}

/// Nothing where the text is no number above 0.
std::optional<double> parse_weight(std::string_view text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  const bool is_weight =
      error == std::errc() && end == text.data() + text.size() && weight > 0 && std::isfinite(weight);
  return is_weight ? std::optional{weight} : std::nullopt;
}

}  // namespace

std::vector<double> parse_task_weights(const std::vector<std::string>& entries, const data::Tasks& tasks) {
  std::vector<std::optional<double>> weights(tasks.names().size());
  std::vector<std::string> errors;
  for (const auto& entry : entries) {
    const auto equals = entry.rfind('=');
    const std::string name = entry.substr(0, equals);
    const auto weight = equals == std::string::npos ? std::nullopt : parse_weight(entry.substr(equals + 1));
    if (!weight) {
      errors.push_back(
          fmt::format("{}: an entry is written name=weight with a weight above 0, such as caption=0.5", entry));
      continue;
    }
    const auto it = std::ranges::find(tasks.names(), name);
    if (it == tasks.names().end()) {
      const auto suggestion = find_nearest(name, tasks.names());
      errors.push_back(fmt::format("{}: is not a task of data.train; {}", name,
                                   suggestion ? fmt::format("did you mean {}?", *suggestion)
                                              : fmt::format("its tasks are {}", fmt::join(tasks.names(), ", "))));
      continue;
    }
    auto& slot = weights[static_cast<size_t>(it - tasks.names().begin())];
    if (slot) errors.push_back(fmt::format("{}: stands twice; keep one", name));
    slot = weight;
  }
  std::vector<double> values;
  for (size_t task = 0; task < weights.size(); ++task) {
    if (!weights[task]) errors.push_back(fmt::format("{0}: has no weight; add {0}=1", tasks.names()[task]));
    values.push_back(weights[task].value_or(1.0));
  }
  if (!errors.empty()) throw usage_error("training.task_weights:\n  {}", fmt::join(errors, "\n  "));
  return normalize_mean(std::move(values), tasks.samples());
}

std::vector<double> compute_inverse_size_weights(const data::Tasks& tasks) {
  std::vector<double> weights;
  for (const int64_t samples : tasks.samples()) weights.push_back(1.0 / static_cast<double>(samples));
  return normalize_mean(std::move(weights), tasks.samples());
}

}  // namespace vlmtrain::train
