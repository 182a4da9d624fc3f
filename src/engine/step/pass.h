#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <memory>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

/// Waits until autograd's thread of the device has freed the tensors of a failed backward pass. The
/// thread reports the error before it frees them, so without this wait, the allocator's state would
/// vary from run to run. Does nothing on the CPU, whose backward passes run on the calling thread.
inline void wait_for_backward_thread(at::Device device) noexcept {
  if (device.is_cpu()) return;
  try {
    // The thread runs tasks in order. The task of an empty tensor allocates and launches nothing.
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const at::Tensor empty_tensor = at::empty({0}, options).requires_grad_();
    (empty_tensor * 2).backward(at::empty({0}, options));
  } catch (const std::exception&) {
    // If the device failed, the next operation reports it.
  }
}

/// Calls `pass` between begin_pass() and end_pass() of the store (nn::BlockUnsharder). After an
/// out-of-memory error, ends the pass, so that other ranks can continue theirs, and rethrows the
/// error. Other errors, which end the process, are rethrown at once.
template <class Pass>
void run_pass(const nn::ParameterStore& store, const nn::ForwardPassSpec& spec, const Pass& pass) {
  store.begin_pass(spec);
  try {
    pass();
  } catch (const std::exception& error) {
    if (!memory::detect_out_of_memory(error)) throw;
    wait_for_backward_thread(store.options().device());
    store.end_pass();
    throw;
  }
  store.end_pass();
}

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
