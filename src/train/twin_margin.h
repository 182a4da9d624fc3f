#pragma once

#include <cstdint>
#include <deque>

namespace vlmtrain::train {

/// What a twin's limit is lowered by, beyond the margin of the plan: it rises where the twin was wrong and falls again
/// over steps that went as it foresaw. Two things make it up: what the last steps took more than was foreseen, and a
/// share of the limit for each time that memory ran out unforeseen, which halves after twenty good steps; after twice
/// as many with every further time, so that a run which keeps running out does not keep coming back for it.
class LookAheadMargin {
 public:
  explicit LookAheadMargin(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Memory ran out although nothing of the kind was foreseen.
  void raise();

  /// A step went as foreseen, and took so much more (or less, if negative) of the reserved memory.
  void record_success(int64_t excess_bytes);

  int64_t bytes() const;

 private:
  int64_t limit_bytes_;
  int64_t raised_bytes_ = 0;
  int64_t good_steps_ = 0;  // since it rose or fell
  int64_t good_steps_to_halve_ = 10;
  std::deque<int64_t> excess_bytes_;  // of the last steps
};

}  // namespace vlmtrain::train
