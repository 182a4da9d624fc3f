#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::data {

/// A source of data.train.
struct Source {
  std::string path;  ///< a path or pattern as in io::open_records()
  /// Share of the draws relative to the weights of the other sources, on any scale.
  std::optional<double> weight = std::nullopt;
  /// Number of passes over its samples in an epoch. Excludes `weight`.
  std::optional<double> repeat = std::nullopt;
  std::string task;        ///< overrides the tasks of its samples; empty: the tasks of the records
  std::string image_root;  ///< empty: data.image_root or, if that is empty too, the folder of `path`

  bool operator==(const Source&) const = default;
};

/// The value of data.train: a path, or a list of paths and {path, weight or repeat, task,
/// image_root}.
class SourceList {
 public:
  SourceList() = default;
  // Implicit, since a path is a valid value: NOLINTBEGIN(google-explicit-constructor)
  SourceList(const std::string& path);
  SourceList(const std::filesystem::path& path) : SourceList(path.string()) {}
  // NOLINTEND(google-explicit-constructor)

  const std::vector<Source>& sources() const { return sources_; }
  bool empty() const { return sources_.empty(); }
  /// Returns whether any source has a weight or a repeat.
  bool has_weights_or_repeats() const;
  /// Returns the name for messages: the path, or "a.json and 2 more sources".
  std::string name() const;

  nlohmann::ordered_json to_json() const;
  /// Sets the sources. Returns an error message and changes nothing if `value` is invalid.
  std::optional<std::string> set(const nlohmann::ordered_json& value);

 private:
  std::vector<Source> sources_;
};

/// The shares of the tasks in the draws from a step on.
struct TaskShares {
  int64_t first_step = 0;
  std::vector<std::pair<std::string, double>> shares;  ///< of each task, on any scale

  bool operator==(const TaskShares&) const = default;
};

/// The value of data.task_shares: {T1: 0.5, T2: 0.5}, or ["T1=0.5", "T2=0.5"], or a list of
/// {step: 0, shares: …} with steps that ascend from 0.
class TaskShareSchedule {
 public:
  const std::vector<TaskShares>& changes() const { return share_changes_; }
  bool empty() const { return share_changes_.empty(); }

  nlohmann::ordered_json to_json() const;
  /// Sets the shares. Returns an error message and changes nothing if `value` is invalid.
  std::optional<std::string> set(const nlohmann::ordered_json& value);

 private:
  std::vector<TaskShares> share_changes_;
};

}  // namespace vlmtrain::data
