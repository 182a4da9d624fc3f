#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/io/records.h"

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

/// data.on_bad_sample: stop the run, or drop the sample.
enum class BadSamplePolicy { kFail, kSkip };

/// data.on_too_long: the treatment of samples with more than data.max_length tokens.
enum class LongSamplePolicy {
  kShrink,  ///< shrink the media until the sample fits; treat it as a bad one if it cannot fit
  kDrop,    ///< drop the sample, regardless of the policy for bad samples
  kFail,    ///< treat the sample as a bad one
};

/// The reason why a sample cannot be used.
struct SampleProblem {
  std::string reason;       ///< a short fixed phrase that the ledger counts by
  std::string message;      ///< a sentence that names the sample and the fix
  bool is_dropped = false;  ///< dropped regardless of the policy for bad samples

  bool operator==(const SampleProblem&) const = default;
};

/// The exception that ended the processing of a sample.
struct LoadFailure {
  std::string reason;
  std::string message;
  bool is_skippable = false;  ///< caused by the sample, not by the program or the machine
  bool is_dropped = false;    ///< see SampleProblem::is_dropped
};

/// Describes an exception of any type. REQUIRES: `error` is not null.
LoadFailure describe_failure(const std::exception_ptr& error);

/// Returns the problem of a sample whose processing threw `error`. Rethrows errors that the sample
/// did not cause. REQUIRES: `error` is not null.
SampleProblem to_sample_problem(const std::exception_ptr& error);

/// Returns whether a problem stops the run; other problems drop the sample.
inline bool should_stop_run(const SampleProblem& problem, BadSamplePolicy policy) {
  return policy == BadSamplePolicy::kFail && !problem.is_dropped;
}

/// Writes bad samples to the ledger of their data set: as failed if they stop the run, else as
/// dropped. `problems` has the bad samples by index, `ids` the ids of all samples.
void add_problems_to_ledger(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids,
                            BadSamplePolicy policy, Ledger& ledger);

/// Writes bad samples to the ledger like add_problems_to_ledger(), and logs the newly dropped ones.
/// Throws UserError (kBadData) if any sample stops the run; the message names their number and the
/// first of them. `records` is the data set.
void report_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, Ledger& ledger,
                     BadSamplePolicy policy, const io::Records& records);

/// A logger of dropped samples. Logs the first 20 and counts the others, so that a data set of bad
/// samples does not flood the log.
class BadSampleLog {
 public:
  /// Logs a dropped sample of `dataset`, or counts it if the limit is reached.
  void log_dropped_sample(const std::string& dataset, const std::string& message);
  /// Logs the number of samples that were counted instead of logged after the last call, if any.
  /// `dropped` is the total number of dropped samples, `samples` the size of the data set.
  void log_summary(int64_t dropped, int64_t samples);

 private:
  int64_t num_logged_samples_ = 0;
  int64_t num_suppressed_samples_ = 0;
};

/// Returns whether the message of a bad sample mentions a record key that earlier versions of the
/// program ignored.
bool mentions_ignored_keys(std::string_view message);

/// Returns the text to append to such a message if an earlier version started the run; empty for
/// other messages.
std::string make_ignored_keys_hint(std::string_view message);

}  // namespace vlmtrain::data
