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

}  // namespace vlmtrain::data
