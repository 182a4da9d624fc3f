#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sources.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// The concatenated records of all sources of a data set. Source::task overrides the tasks of the
/// records. Thread-safe.
class DataSet final : public io::Records {
 public:
  /// A source with its records.
  struct SourceRecords {
    Source source;
    std::shared_ptr<const io::Records> records;
  };
  /// REQUIRES: at least one source.
  explicit DataSet(std::vector<SourceRecords> sources);

  int64_t size() const override { return source_ends_.back(); }
  io::Record at(int64_t index) const override;
  io::Record at_without_media_bytes(int64_t index) const override;
  std::vector<int64_t> block_starts() const override;
  uint64_t version_hash() const override;

  const std::vector<SourceRecords>& sources() const { return sources_; }
  /// Returns the indices of a source's records as [begin, end).
  std::pair<int64_t, int64_t> record_range(size_t source_index) const;

 private:
  /// The location of a record: its source, and its index in the records of the source.
  struct RecordLocation {
    size_t source_index;
    int64_t index;
  };
  /// REQUIRES: 0 <= index < size().
  RecordLocation locate(int64_t index) const;
  /// Returns the record with the task of its source, if it has one, and with the source in its
  /// location if there are several.
  io::Record annotate_with_source(io::Record record, size_t source_index) const;

  std::vector<SourceRecords> sources_;
  std::vector<int64_t> source_ends_;  // ends of the sources' index ranges
};

/// Marks the usable samples that are larger than a pack as bad: moves them from `shapes` to
/// `problems`.
void reject_oversized_samples(const PackLimits& limits, SampleIndex& sample_index);

/// Returns the order in which the samples of a data set are drawn: one mixture source, or one for
/// each source or task if they have shares. Packs hold the usable samples of `sample_index`. Throws
/// UserError: kUsage if both sources and tasks have shares, if the task shares do not match the
/// tasks, or if packing, a curriculum or task shares need a complete index; kBadData if a mixture
/// source has no usable sample.
SampleOrder make_sample_order(const DataSet& data_set, const TaskShareSchedule& task_shares,
                              const SampleIndex& sample_index, OrderSettings settings);

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
