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
  kShrink,  ///< shrink the media until the sample fits; a bad sample if it cannot fit
  kDrop,    ///< drop the sample, regardless of the policy for bad samples
  kFail,    ///< a bad sample
};

/// The reason why a sample cannot be used.
struct SampleProblem {
  std::string reason;       ///< a short fixed phrase that the ledger counts by
  std::string message;      ///< a sentence
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

/// REQUIRES: `error` is not null.
LoadFailure describe_failure(const std::exception_ptr& error);

/// Returns the problem of a sample whose processing threw `error`. Rethrows errors that the sample
/// did not cause. REQUIRES: `error` is not null.
SampleProblem to_sample_problem(const std::exception_ptr& error);

/// Returns whether a problem stops the run; other problems drop the sample.
inline bool stops_run(const SampleProblem& problem, BadSamplePolicy policy) {
  return policy == BadSamplePolicy::kFail && !problem.is_dropped;
}

/// Writes bad samples to the ledger of their data set: as failed if they stop the run, else as
/// dropped. `problems`: by index. `ids`: of all samples of the data set, by index.
void record_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, BadSamplePolicy policy,
                     Ledger& ledger);

/// Writes bad samples to the ledger as record_problems() does, and logs the newly dropped ones.
/// Throws UserError (kBadData) with the number of failed samples and the first of them, if there
/// are any.
void report_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, Ledger& ledger,
                     BadSamplePolicy policy, const io::Records& records);

/// A logger of dropped samples. Logs the first 20 and counts the others, so that a data set of bad
/// samples does not flood the log.
class BadSampleLog {
 public:
  void warn(const std::string& message);
  /// Logs how many samples were counted without a message since the last call. `dropped`: of the
  /// `samples` of the data set, how many are dropped in total.
  void summarize(int64_t dropped, int64_t samples);

 private:
  int64_t num_logged_ = 0;
  int64_t num_suppressed_ = 0;
};

/// Returns whether the message of a bad sample is about a record key that earlier versions of the
/// program ignored.
bool mentions_ignored_keys(std::string_view message);

/// Returns the addition to such a message for a run that was started by an earlier version, to
/// follow the message; empty for other messages.
std::string explain_ignored_keys(std::string_view message);

}  // namespace vlmtrain::data
