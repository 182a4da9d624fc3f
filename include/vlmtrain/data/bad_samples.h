#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

enum class BadSamplePolicy { kFail, kSkip };

/// What becomes of a sample that is longer than data.max_length: its media lose pixels until it fits, and where they
/// cannot it is a bad sample; it is left out, whatever the policy of bad samples; it is a bad sample.
enum class LongSamplePolicy { kShrink, kDrop, kFail };

/// What stands against a sample: a short fixed phrase that the ledger counts by, and a sentence.
struct SampleProblem {
  std::string reason;
  std::string message;
  bool is_dropped = false;  ///< whatever the policy of bad samples

  bool operator==(const SampleProblem&) const = default;
};

/// Enters bad samples, by index, in the ledger of their data set: with kSkip (and where is_dropped) as dropped, and the
/// log says of those that were not dropped before. With kFail as failed; throws a UserError (kBadData) that says how
/// many these are and names the first. `ids`: of the data set's samples, by index.
void report_problems(const std::map<int64_t, SampleProblem>& problems, const TextColumn& ids, Ledger& ledger,
                     BadSamplePolicy policy, const io::Records& records);

}  // namespace vlmtrain::data
