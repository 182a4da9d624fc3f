#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/notice_counts.h"
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
  /// checkpoint was written), as are notices; used ones follow from the order, in O(samples). A sample that stopped the
  /// run is tried again, so it is no longer a failed one. Throws UserError (kBadData) if `saved` is of another data
  /// set's size or is not a ledger.
  static Ledger restore(const nlohmann::ordered_json& saved, std::string dataset, const SampleOrder& order,
                        const Cursor& next);

  /// `notices` of the sample are counted the first time that it is used, as far as is_counted_on_use() says.
  void mark_used(int64_t index, std::string_view id = {}, const std::vector<io::Notice>& notices = {});
  /// `reason` is a short fixed phrase to count by, `message` a sentence. The first problem of a status is kept.
  void mark_dropped(int64_t index, std::string id, std::string reason, std::string message);
  void mark_failed(int64_t index, std::string id, std::string reason, std::string message);

  /// Of a sample that is used, what its media lost.
  void mark_shrunk(int64_t index, std::string id, const ShrinkInfo& shrunk);

  /// Notices of all samples, counted before any is used. Kinds that only pixels show are not among them: these are
  /// counted as samples are used, and those that are there stay.
  void set_all_notices(NoticeCounts notices);
  const NoticeCounts& notices() const { return notices_; }
  bool has_all_notices() const { return has_all_notices_; }
  /// Whether notices of this kind are counted as samples are used.
  bool is_counted_on_use(const std::string& kind) const {
    return !has_all_notices_ || !precounted_kinds_.contains(kind);
  }

  SampleStatus status(int64_t index) const { return statuses_.at(static_cast<size_t>(index)); }
  int64_t count(SampleStatus status) const { return counts_.at(static_cast<size_t>(status)); }
  int64_t samples() const { return static_cast<int64_t>(statuses_.size()); }
  const std::string& dataset() const { return dataset_; }

  /// {"dataset", "samples", "used", "dropped", "failed", "not_reached", "reasons": {reason: samples},
  /// "problems": [{"index", "id", "status", "reason", "message"}, by index],
  /// "shrunk": {"samples", "each": [{"index", "id", "tokens": [before, after], "pixels": [before, after],
  /// "image_max_pixels", "frame_max_pixels"}, by index]}, "notices": NoticeCounts::to_json(),
  /// "notices_of": "all" samples, but for kinds that only pixels show, or "used" ones}
  nlohmann::ordered_json to_json() const;

 private:
  struct Problem {
    std::string id;
    std::string reason;
    std::string message;
  };

  bool raise_status(int64_t index, SampleStatus status);

  std::string dataset_;
  std::vector<SampleStatus> statuses_;
  std::array<int64_t, 4> counts_{};  // by status
  std::map<int64_t, Problem> problems_;
  std::map<int64_t, std::pair<std::string, ShrinkInfo>> shrunk_;  // with their ids
  NoticeCounts notices_;
  bool has_all_notices_ = false;
  std::set<std::string> precounted_kinds_;  // counted of all samples
};

}  // namespace vlmtrain::data
