#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/data/ledger.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

enum class BadSamplePolicy { kFail, kSkip };

/// What stands against a sample: a short fixed phrase that the ledger counts by, and a sentence.
struct SampleProblem {
  std::string reason;
  std::string message;

  bool operator==(const SampleProblem&) const = default;
};

/// Enters bad samples, by index, in the ledger of their data set: with kSkip as dropped, and the log says of those that
/// were not dropped before. With kFail as failed; throws a UserError (kBadData) that says how many they are and names
/// the first.
void settle_problems(const std::map<int64_t, SampleProblem>& problems, Ledger& ledger, BadSamplePolicy policy,
                     const io::Records& records);

}  // namespace vlmtrain::data
