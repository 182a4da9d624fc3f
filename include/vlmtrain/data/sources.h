#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::data {

/// One of the things that data.train names.
struct Source {
  std::string path;  ///< as io::open_records takes it
  /// Its share of what is drawn beside the other sources' weights, on any scale.
  std::optional<double> weight = std::nullopt;
  /// How often it is gone through in an epoch.
  std::optional<double> repeat = std::nullopt;
  std::string task;        ///< of its samples, whatever they say themselves; empty: what they say
  std::string image_root;  ///< empty: data.image_root, and without that the folder of `path`

  bool operator==(const Source&) const = default;
};

/// data.train: one path, or a list of paths and of {path, weight or repeat, task, image_root}.
class Sources {
 public:
  Sources() = default;
  // A path is a source: NOLINTBEGIN(google-explicit-constructor)
  Sources(const std::string& path);
  Sources(const std::filesystem::path& path) : Sources(path.string()) {}
  // NOLINTEND(google-explicit-constructor)

  const std::vector<Source>& all() const { return sources_; }
  bool empty() const { return sources_.empty(); }
  /// Whether samples are drawn by shares of the sources, and not all alike.
  bool has_shares() const;
  /// For messages: the path, or "a.json and 2 more sources".
  std::string name() const;

  nlohmann::ordered_json to_json() const;
  /// What is wrong with `value`, or nothing.
  std::optional<std::string> set(const nlohmann::ordered_json& value);

 private:
  std::vector<Source> sources_;
};

/// Shares of tasks in what is drawn, from a step on.
struct TaskShares {
  int64_t from_step = 0;
  std::vector<std::pair<std::string, double>> shares;  ///< task and share, on any scale

  bool operator==(const TaskShares&) const = default;
};

/// data.task_shares: {T1: 0.5, T2: 0.5}, or ["T1=0.5", "T2=0.5"], or a list of {step: 0, shares: …} with steps that
/// ascend from 0.
class TaskShareSchedule {
 public:
  const std::vector<TaskShares>& changes() const { return changes_; }
  bool empty() const { return changes_.empty(); }

  nlohmann::ordered_json to_json() const;
  std::optional<std::string> set(const nlohmann::ordered_json& value);

 private:
  std::vector<TaskShares> changes_;
};

}  // namespace vlmtrain::data
