#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::data {

/// The tasks of a data set (io::Record::task), numbered from 0 by the order of their names. Records that name none are
/// a task of their own, `none`; records with a problem do not count.
class Tasks {
 public:
  explicit Tasks(const std::vector<io::Record>& records);

  const std::vector<std::string>& names() const { return names_; }
  int64_t count() const { return std::ssize(names_); }
  /// Of each task, in the data set.
  const std::vector<int64_t>& samples() const { return samples_; }

  /// REQUIRES: `task` is that of a record.
  int64_t number_of(std::string_view task) const;

  /// Gives each sample the number of its task.
  void number(std::vector<Sample>& samples) const;

 private:
  std::vector<std::string> names_;
  std::vector<int64_t> samples_;
};

/// Brings samples of one task together, in the order of the tasks and else as they were.
void sort_by_task(std::vector<Sample>& samples);

/// How many samples there are of each run of neighbours of one task.
std::vector<int64_t> runs_of_tasks(const std::vector<Sample>& samples);

}  // namespace vlmtrain::data
