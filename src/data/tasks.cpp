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

Tasks::Tasks(const std::vector<io::Record>& records) {
  std::map<std::string, int64_t, std::less<>> counts;
  for (const auto& record : records) {
    if (record.problem.empty()) ++counts[std::string(name_of(record.task))];
  }
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
