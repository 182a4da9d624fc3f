#include "vlmtrain/data/tasks.h"

#include <algorithm>
#include <map>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

constexpr std::string_view kNoTask = "none";

std::string_view name_of(std::string_view task) {
  return task.empty() ? kNoTask : task;
}

}  // namespace

std::string name_of_task(std::string_view task) {
  return std::string(name_of(task));
}

Tasks::Tasks(const Outlines& outlines, const io::Records& records) {
  if (!outlines.are_all) {
    *this = Tasks(records);
    return;
  }
  Counts counts;
  for (int64_t i = 0; i < outlines.shapes.size(); ++i) {
    if (outlines.shapes.has(i)) ++counts[std::string(name_of(outlines.tasks[i]))];
  }
  set(counts);
}

Tasks::Tasks(const io::Records& records) {
  Counts counts;
  for (int64_t index = 0; index < records.size(); ++index) {
    const io::Record record = records.text_at(index);
    if (record.problem.empty()) ++counts[std::string(name_of(record.task))];
  }
  set(counts);
}

void Tasks::set(const Counts& counts) {
  for (const auto& [name, count] : counts) {
    names_.push_back(name);
    samples_.push_back(count);
  }
}

int64_t Tasks::number_of(std::string_view task) const {
  const auto found = std::ranges::lower_bound(names_, name_of(task));
  VLMTRAIN_CHECK(found != names_.end() && *found == name_of(task), "{} is not one of the tasks", task);
  return std::distance(names_.begin(), found);
}

void Tasks::number(std::vector<Sample>& samples) const {
  for (auto& sample : samples) sample.task_number = number_of(sample.task);
}

}  // namespace vlmtrain::data
