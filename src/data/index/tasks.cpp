#include "vlmtrain/data/index/tasks.h"

#include <algorithm>
#include <map>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

/// Display name of the samples without a task.
constexpr std::string_view kNoTaskName = "none";

std::string_view get_display_name(std::string_view task) {
  return task.empty() ? kNoTaskName : task;
}

}  // namespace

std::string get_task_display_name(std::string_view task) {
  return std::string(get_display_name(task));
}

TaskTable::TaskTable(const SampleIndex& sample_index, const io::Records& records) {
  if (!sample_index.is_complete) {
    *this = TaskTable(records);
    return;
  }
  SampleCountsByTask counts;
  for (int64_t i = 0; i < sample_index.shapes.size(); ++i) {
    if (sample_index.shapes.is_known(i)) ++counts[std::string(get_display_name(sample_index.tasks[i]))];
  }
  set_sample_counts(counts);
}

TaskTable::TaskTable(const io::Records& records) {
  SampleCountsByTask counts;
  for (int64_t index = 0; index < records.size(); ++index) {
    const io::Record record = records.at_without_media_bytes(index);
    if (record.problem.empty()) ++counts[std::string(get_display_name(record.task))];
  }
  set_sample_counts(counts);
}

void TaskTable::set_sample_counts(const SampleCountsByTask& counts) {
  for (const auto& [name, count] : counts) {
    names_.push_back(name);
    sample_counts_.push_back(count);
  }
}

int64_t TaskTable::find_task_index(std::string_view task) const {
  const auto match = std::ranges::lower_bound(names_, get_display_name(task));
  VLMTRAIN_CHECK(match != names_.end() && *match == get_display_name(task), "{} is not one of the tasks", task);
  return std::distance(names_.begin(), match);
}

void TaskTable::assign_task_indices(std::vector<Sample>& samples) const {
  for (auto& sample : samples) sample.task_index = find_task_index(sample.task);
}

}  // namespace vlmtrain::data
