#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

struct Sample;  // sample/sample.h

/// Returns the display name of a task: "none" if it is empty.
std::string get_task_display_name(std::string_view task);

/// The tasks of a data set (io::Record::task), numbered from 0 in alphabetical order. Samples
/// without a task form the task "none". Unusable samples are ignored.
class TaskTable {
 public:
  /// Takes the tasks from `sample_index`, or reads all records if it is not complete.
  TaskTable(const SampleIndex& sample_index, const io::Records& records);
  explicit TaskTable(const io::Records& records);

  const std::vector<std::string>& names() const { return names_; }
  int64_t num_tasks() const { return std::ssize(names_); }
  /// Returns the number of samples of each task, in the order of names().
  const std::vector<int64_t>& sample_counts() const { return sample_counts_; }

  /// Returns the index of a task in names(). REQUIRES: a sample of the data set has it.
  int64_t find_task_index(std::string_view task) const;

  /// Sets Sample::task_index of each sample.
  void assign_task_indices(std::vector<Sample>& samples) const;

 private:
  using SampleCountsByTask = std::map<std::string, int64_t, std::less<>>;
  void set_sample_counts(const SampleCountsByTask& counts);

  std::vector<std::string> names_;
  std::vector<int64_t> sample_counts_;
};

}  // namespace vlmtrain::data
