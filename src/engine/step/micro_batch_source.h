#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "vlmtrain/data/sample/micro_batch.h"
#include "vlmtrain/engine/step/step.h"

namespace vlmtrain::engine {

/// A source of the micro-batches of a step, in order, on the device. On CUDA with
/// StepLayout::copies_ahead, each is copied while the previous one computes. Not thread-safe.
class MicroBatchSource {
 public:
  /// `input` and `layout` must outlive this object.
  MicroBatchSource(const StepInput& input, const StepLayout& layout, at::Device device);
  ~MicroBatchSource();
  MicroBatchSource(const MicroBatchSource&) = delete;
  MicroBatchSource& operator=(const MicroBatchSource&) = delete;

  /// Returns the next micro-batch, and starts to copy the one after it. If memory does not suffice
  /// for the latter, this step copies no further micro-batch ahead. Out-of-memory errors of the
  /// next micro-batch itself propagate. REQUIRES: a next micro-batch exists.
  data::MicroBatch next();

 private:
  struct PrefetchedBatch;

  data::MicroBatch collate_next_batch();
  void prefetch_next_batch();

  const StepInput& input_;
  const StepLayout& layout_;
  at::Device device_;
  bool copies_ahead_;
  int64_t next_index_ = 0;                             // of the micro-batch to collate next
  std::unique_ptr<PrefetchedBatch> prefetched_batch_;  // micro-batch next_index_ - 1 until next() returns it
};

}  // namespace vlmtrain::engine
