#pragma once

#include <optional>
#include <vector>

#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {

/// Rehearses whether changes of a plan that does not fit make it fit, on a card or on the host.
class RemedyRehearsal {
 public:
  /// What was asked for. All must outlive the rehearsal.
  struct Asked {
    const Job& job;
    const Workload& workload;
    const FixedChoices& fixed;
    const std::vector<SampleLimit>& sample_limits;
    const CommandWords& words;
    bool has_bf16 = true;  ///< or else its 16 bits are fp16
  };

  explicit RemedyRehearsal(const Asked& asked) : asked_(asked) {}
  virtual ~RemedyRehearsal() = default;
  RemedyRehearsal(const RemedyRehearsal&) = delete;
  RemedyRehearsal& operator=(const RemedyRehearsal&) = delete;

  const Asked& asked() const { return asked_; }

  /// The least that the job takes with these samples, whatever is not fixed; it stops at the first choices that fit.
  /// Nothing if it is more than there is anywhere.
  virtual std::optional<int64_t> least_bytes(const Job& job, const Workload& workload, const FixedChoices& fixed) = 0;

  struct Freed {
    int64_t micro_batch_size = 0;
    int64_t total_bytes = 0;
  };
  /// The plan that is made of what was asked for where this is fixed instead; nothing if it does not fit either.
  virtual std::optional<Freed> plan_with(const FixedChoices& fixed) = 0;

  virtual int64_t limit_bytes() const = 0;               ///< that what was rehearsed may take
  virtual int64_t total_bytes(int64_t bytes) const = 0;  ///< with what is taken beside it
  /// More memory for the plan as it is: a smaller margin or a higher limit, where a person keeps the run from taking
  /// what there is.
  virtual std::vector<Suggestion> more_memory() const = 0;

  bool fits(std::optional<int64_t> bytes) const { return bytes && *bytes <= limit_bytes(); }

 private:
  Asked asked_;
};

}  // namespace vlmtrain::planner
