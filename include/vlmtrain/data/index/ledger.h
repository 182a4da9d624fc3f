#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/notices.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::data {

/// The outcome of a sample. A status changes only to a later one in this order, so that each sample
/// is counted once: a sample that was used in the first epoch and failed in the second counts as
/// dropped.
enum class SampleStatus : uint8_t {
  kNotReached,
  kUsed,
  kDropped,  ///< bad and skipped by the policy
  kFailed,   ///< bad and the cause that the run stopped
};

/// The account of every sample of a data set; the counts sum up to its size. Not thread-safe.
class Ledger {
 public:
  /// `dataset` is the name of the data set, `samples` its size.
  Ledger(std::string dataset, int64_t samples);

  /// Returns the ledger of a run that resumes at the cursor `next`. Dropped samples and notices
  /// come from `saved`, the to_json() of the checkpoint. Used samples follow from the order, in
  /// O(samples). Failed samples are tried again. Throws UserError (kBadData) if `saved` is invalid
  /// or of a data set of another size.
  static Ledger restore(const nlohmann::ordered_json& saved, std::string dataset, const SampleOrder& order,
                        const Cursor& next);

  /// Marks a sample as used. The first time, counts those of its `notices` for which
  /// is_counted_on_use() is true.
  void mark_used(int64_t index, std::string_view id = {}, const std::vector<io::Notice>& notices = {});
  /// Marks a sample as dropped. `reason` is a short fixed phrase to count by, `message` a sentence.
  /// Only the first problem with the same status is kept.
  void mark_dropped(int64_t index, std::string id, std::string reason, std::string message);
  /// Marks a sample as failed; see mark_dropped().
  void mark_failed(int64_t index, std::string id, std::string reason, std::string message);

  /// Records how the media of a sample were shrunk.
  void mark_shrunk(int64_t index, std::string id, const ShrinkInfo& shrunk);

  /// Sets the notices of all samples, counted before the first step. They do not include kinds that
  /// depend on pixels, which are still counted when samples are used.
  void set_precounted_notices(NoticeCounts notices);
  const NoticeCounts& notices() const { return notices_; }
  bool has_precounted_notices() const { return has_precounted_notices_; }
  /// Returns whether notices of this kind are counted when samples are used.
  bool is_counted_on_use(const std::string& kind) const {
    return !has_precounted_notices_ || !precounted_kinds_.contains(kind);
  }

  SampleStatus status(int64_t index) const { return statuses_.at(static_cast<size_t>(index)); }
  int64_t count(SampleStatus status) const { return status_counts_.at(static_cast<size_t>(status)); }
  int64_t num_samples() const { return static_cast<int64_t>(statuses_.size()); }
  const std::string& dataset_name() const { return dataset_; }

  /// Returns the contents of ledger.json:
  ///
  ///     {"dataset", "samples", "used", "dropped", "failed", "not_reached", "reasons": {reason: samples},
  ///      "problems": [{"index", "id", "status", "reason", "message"}],
  ///      "shrunk": {"samples", "each": [{"index", "id", "tokens": [before, after], "pixels": [before, after],
  ///                                      "image_max_pixels", "frame_max_pixels"}]},
  ///      "notices": NoticeCounts::to_json(), "notices_of": "all" or "used"}
  ///
  /// The lists are sorted by index. "notices_of": the samples whose notices are counted, except
  /// kinds that depend on pixels, which are always of used samples.
  nlohmann::ordered_json to_json() const;

 private:
  /// The problem of a dropped or failed sample.
  struct LedgerProblem {
    std::string id;
    std::string reason;
    std::string message;
  };

  /// Sets the status unless it is earlier than or equal to the current one. Returns whether it
  /// changed.
  bool upgrade_status(int64_t index, SampleStatus status);

  std::string dataset_;
  std::vector<SampleStatus> statuses_;
  std::array<int64_t, 4> status_counts_{};  // by status
  std::map<int64_t, LedgerProblem> problems_;
  std::map<int64_t, std::pair<std::string, ShrinkInfo>> shrink_infos_;  // id and sizes by index
  NoticeCounts notices_;
  bool has_precounted_notices_ = false;
  std::set<std::string> precounted_kinds_;  // kinds that were counted over all samples before the first step
};

/// A counter of epochs in usable samples: an epoch ends when each sample that is not dropped was
/// drawn once. With several mixture sources, an epoch has the usable samples of all sources, each
/// as often as it repeats. Takes O(1) for each sample that the cursor advances, and O(samples)
/// after samples were dropped. Not thread-safe.
class EpochProgress {
 public:
  /// `ledger` and `order` must outlive the object.
  EpochProgress(const Ledger& ledger, const SampleOrder& order);

  /// Returns the number of epochs before `cursor`, with the fraction of the current one.
  double at(const Cursor& cursor);
  /// Returns the number of passes over one source's samples before `cursor`, with the fraction of
  /// the current one.
  double compute_source_progress(int64_t source, const Cursor& cursor);

 private:
  /// The counts of a source up to the last cursor.
  struct SourceProgress {
    int64_t epoch = -1;
    std::shared_ptr<const EpochOrder> order;  // order of `epoch`
    int64_t num_dropped_samples = -1;         // in the ledger at the time of the counts
    int64_t offset = 0;                       // samples of `order` before it were counted
    int64_t num_usable_before_offset = 0;     // in `order`
    int64_t num_usable_samples = 0;           // of the epoch; at least 1
  };

  /// Advances the counts of a source to `cursor`.
  const SourceProgress& update_source_progress(int64_t source, const Cursor& cursor);

  const Ledger& ledger_;
  const SampleOrder& order_;
  std::vector<SourceProgress> source_progress_;
};

/// Returns the number of units in an epoch without dropped samples, each source as often as it
/// repeats. The number is exact for single samples. For packs it is an estimate from the first
/// epoch; later epochs may have slightly more or fewer.
double count_batch_units_per_epoch(const SampleOrder& order, const Ledger& ledger);

}  // namespace vlmtrain::data
