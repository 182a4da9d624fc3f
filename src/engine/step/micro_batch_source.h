#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/engine/step.h"

namespace vlmtrain::engine {

/// The micro-batches of a step on the device, one after another. On CUDA, with StepLayout::copies_ahead, each is copied
/// while the one before it computes.
class MicroBatchSource {
 public:
  /// Both must outlive it.
  MicroBatchSource(const StepInput& input, const StepLayout& layout, at::Device device);
  ~MicroBatchSource();
  MicroBatchSource(const MicroBatchSource&) = delete;
  MicroBatchSource& operator=(const MicroBatchSource&) = delete;

  /// The next one; the copy of the one behind it begins. Where memory does not suffice for that one, none is copied
  /// ahead for the rest of the step. REQUIRES: there is a next one.
  data::MicroBatch next();

 private:
  struct PrefetchedBatch;

  data::MicroBatch collate_next();
  void prefetch_next();

  const StepInput& input_;
  const StepLayout& layout_;
  at::Device device_;
  bool copies_ahead_;
  int64_t next_ = 0;                             // to be collated
  std::unique_ptr<PrefetchedBatch> prefetched_;  // micro-batch next_ - 1, where it is not handed out yet
};

}  // namespace vlmtrain::engine
