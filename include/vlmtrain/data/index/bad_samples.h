#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

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
  /// Logs a dropped sample, or counts it if the limit is reached.
  void log_dropped_sample(const std::string& message);
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
