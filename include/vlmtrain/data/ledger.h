#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

/// What became of a sample. A status only ever rises in this order, so that each sample is counted once: one that was
/// used in the first epoch and found bad in the second is a dropped one.
enum class SampleStatus : uint8_t {
  kNotReached,
  kUsed,
  kDropped,  ///< bad, and the policy is to skip such samples
  kFailed,   ///< bad, and it stopped the run
};

/// Accounts for every sample of a data set; the counts sum to its size. Not thread-safe.
class Ledger {
 public:
  Ledger(std::string dataset, int64_t samples);

  /// The ledger of a run that goes on at `next`: dropped samples are taken from `saved` (what to_json gave when the
  /// checkpoint was written), used ones follow from the order, in O(samples). A sample that stopped the run is tried
  /// anew, so it is no longer a failed one. Throws UserError (kBadData) if `saved` is of another data set's size or is
  /// not a ledger.
  static Ledger restore(const nlohmann::ordered_json& saved, std::string dataset, const DrawOrder& order,
                        const Cursor& next);

  void mark_used(int64_t index);
  /// `reason` is a short fixed phrase to count by, `message` a sentence. The first problem of a status is kept.
  void mark_dropped(int64_t index, std::string id, std::string reason, std::string message);
  void mark_failed(int64_t index, std::string id, std::string reason, std::string message);

  /// Of a sample that is used, what its media lost.
  void mark_shrunk(int64_t index, std::string id, const Shrunk& shrunk);

  SampleStatus status(int64_t index) const { return statuses_.at(static_cast<size_t>(index)); }
  int64_t count(SampleStatus status) const { return counts_.at(static_cast<size_t>(status)); }
  int64_t samples() const { return static_cast<int64_t>(statuses_.size()); }
  const std::string& dataset() const { return dataset_; }

  /// {"dataset", "samples", "used", "dropped", "failed", "not_reached", "reasons": {reason: samples},
  /// "problems": [{"index", "id", "status", "reason", "message"}, by index],
  /// "shrunk": {"samples", "each": [{"index", "id", "tokens": [before, after], "pixels": [before, after],
  /// "image_max_pixels", "frame_max_pixels"}, by index]}}
  nlohmann::ordered_json to_json() const;

 private:
  struct Problem {
    std::string id;
    std::string reason;
    std::string message;
  };

  bool raise(int64_t index, SampleStatus status);

  std::string dataset_;
  std::vector<SampleStatus> statuses_;
  std::array<int64_t, 4> counts_{};  // by status
  std::map<int64_t, Problem> problems_;
  std::map<int64_t, std::pair<std::string, Shrunk>> shrunk_;  // with their ids
};

}  // namespace vlmtrain::data
