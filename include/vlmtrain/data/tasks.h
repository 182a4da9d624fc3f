#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/data/outlines.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// How a task is called; a sample that names none has one too.
std::string get_task_name(std::string_view task);

/// The tasks of a data set (io::Record::task), numbered from 0 by the order of their names. Samples that name none are
/// a task of their own, `none`; those that cannot be used do not count.
class Tasks {
 public:
  /// Of `sample_index`; where not all samples were looked at, the records are read for it.
  Tasks(const SampleIndex& sample_index, const io::Records& records);
  explicit Tasks(const io::Records& records);

  const std::vector<std::string>& names() const { return names_; }
  int64_t count() const { return std::ssize(names_); }
  /// Of each task, in the data set.
  const std::vector<int64_t>& samples() const { return samples_; }

  /// REQUIRES: `task` is that of a sample.
  int64_t find_task(std::string_view task) const;

  /// Gives each sample the number of its task.
  void assign_task_numbers(std::vector<Sample>& samples) const;

 private:
  using Counts = std::map<std::string, int64_t, std::less<>>;
  void set(const Counts& counts);

  std::vector<std::string> names_;
  std::vector<int64_t> samples_;
};

}  // namespace vlmtrain::data
