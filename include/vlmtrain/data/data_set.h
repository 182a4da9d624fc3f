#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/data/sources.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// The records of all sources one behind the other. A source's task counts over that of its records.
class DataSet final : public io::Records {
 public:
  struct SourceRecords {
    Source source;
    std::shared_ptr<const io::Records> records;
  };
  explicit DataSet(std::vector<SourceRecords> sources);

  int64_t size() const override { return ends_.back(); }
  io::Record at(int64_t index) const override;
  io::Record at_without_bytes(int64_t index) const override;
  std::vector<int64_t> block_starts() const override;
  uint64_t stamp() const override;

  const std::vector<SourceRecords>& sources() const { return sources_; }
  /// The indices of a part's records: from the first to below the second.
  std::pair<int64_t, int64_t> record_range(size_t source_index) const;

 private:
  struct RecordLocation {
    size_t source_index;
    int64_t index;
  };
  RecordLocation locate(int64_t index) const;
  io::Record apply_source(io::Record record, size_t source_index) const;

  std::vector<SourceRecords> sources_;
  std::vector<int64_t> ends_;  // of the parts' records, ascending
};

/// Makes problems of the samples that are larger than a pack may be.
void reject_oversized_samples(const PackLimits& limits, SampleIndex& sample_index);

/// In which order the samples of a data set are drawn: one lane, or one for each source or task where they have shares.
/// Packs are made of what `sample_index` found usable. Throws UserError: kUsage where shares are of tasks that are not
/// there or leave one out, where sources and tasks both have them; kBadData where a lane has no usable sample.
SampleOrder make_sample_order(const DataSet& data_set, const TaskShareSchedule& task_shares,
                              const SampleIndex& sample_index, OrderSettings settings);

}  // namespace vlmtrain::data
