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
  struct Part {
    Source source;
    std::shared_ptr<const io::Records> records;
  };
  explicit DataSet(std::vector<Part> parts);

  int64_t size() const override { return ends_.back(); }
  io::Record at(int64_t index) const override;
  io::Record text_at(int64_t index) const override;
  std::vector<int64_t> blocks() const override;
  uint64_t stamp() const override;

  const std::vector<Part>& parts() const { return parts_; }
  /// The indices of a part's records: from the first to below the second.
  std::pair<int64_t, int64_t> range_of(size_t part) const;

 private:
  struct PlaceInPart {
    size_t part;
    int64_t index;
  };
  PlaceInPart find(int64_t index) const;
  io::Record of_part(io::Record record, size_t part) const;

  std::vector<Part> parts_;
  std::vector<int64_t> ends_;  // of the parts' records, ascending
};

/// Makes problems of the samples that are larger than a pack may be.
void refuse_larger_than_packs(const PackLimits& limits, Outlines& outlines);

/// In which order the samples of a data set are drawn: one lane, or one for each source or task where they have shares.
/// Packs are made of what `outlines` found usable. Throws UserError: kUsage where shares are of tasks that are not
/// there or leave one out, where sources and tasks both have them; kBadData where a lane has no usable sample.
DrawOrder draw_order(const DataSet& data_set, const TaskShareSchedule& task_shares, const Outlines& outlines,
                     OrderSettings settings);

}  // namespace vlmtrain::data
