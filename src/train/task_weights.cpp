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

std::vector<double> with_mean_one(std::vector<double> weights, const std::vector<int64_t>& samples) {
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
std::optional<double> weight_in(std::string_view text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  const bool is_weight =
      error == std::errc() && end == text.data() + text.size() && weight > 0 && std::isfinite(weight);
  return is_weight ? std::optional{weight} : std::nullopt;
}

}  // namespace

std::vector<double> fixed_weights(const std::vector<std::string>& entries, const data::Tasks& tasks) {
  std::vector<std::optional<double>> weights(tasks.names().size());
  std::vector<std::string> errors;
  for (const auto& entry : entries) {
    const auto equals = entry.rfind('=');
    const std::string name = entry.substr(0, equals);
    const auto weight = equals == std::string::npos ? std::nullopt : weight_in(entry.substr(equals + 1));
    if (!weight) {
      errors.push_back(
          fmt::format("{}: an entry is written name=weight with a weight above 0, such as caption=0.5", entry));
      continue;
    }
    const auto found = std::ranges::find(tasks.names(), name);
    if (found == tasks.names().end()) {
      const auto near = nearest(name, tasks.names());
      errors.push_back(fmt::format("{}: is not a task of data.train; {}", name,
                                   near ? fmt::format("did you mean {}?", *near)
                                        : fmt::format("its tasks are {}", fmt::join(tasks.names(), ", "))));
      continue;
    }
    auto& place = weights[static_cast<size_t>(found - tasks.names().begin())];
    if (place) errors.push_back(fmt::format("{}: stands twice; keep one", name));
    place = weight;
  }
  std::vector<double> given;
  for (size_t task = 0; task < weights.size(); ++task) {
    if (!weights[task]) errors.push_back(fmt::format("{0}: has no weight; add {0}=1", tasks.names()[task]));
    given.push_back(weights[task].value_or(1.0));
  }
  if (!errors.empty()) throw usage_error("training.task_weights:\n  {}", fmt::join(errors, "\n  "));
  return with_mean_one(std::move(given), tasks.samples());
}

std::vector<double> inverse_size_weights(const data::Tasks& tasks) {
  std::vector<double> weights;
  for (const int64_t samples : tasks.samples()) weights.push_back(1.0 / static_cast<double>(samples));
  return with_mean_one(std::move(weights), tasks.samples());
}

}  // namespace vlmtrain::train
