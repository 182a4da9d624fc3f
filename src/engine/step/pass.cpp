#include "engine/step/pass.h"

#include <utility>

#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/memory/out_of_memory.h"

namespace vlmtrain::engine {

struct MicroBatchSource::PrefetchedBatch {
  PrefetchedBatch(data::MicroBatch collated_batch, at::Device device)
      : batch(std::move(collated_batch)), copier(device) {
    for (at::Tensor* tensor : batch.tensors()) {
      if (tensor->defined()) *tensor = copier.copy_async(*tensor);
    }
  }

  data::MicroBatch batch;
  memory::AsyncHostToDeviceCopier copier;  // destroyed first: waits for copies into the batch
};

MicroBatchSource::MicroBatchSource(const StepInput& input, const StepLayout& layout, at::Device device)
    : input_(input), layout_(layout), device_(device), copies_ahead_(layout.copies_ahead && device.is_cuda()) {}

MicroBatchSource::~MicroBatchSource() = default;

data::MicroBatch MicroBatchSource::next() {
  const memory::ComponentScope input_scope(memory::Component::kInput);
  data::MicroBatch batch;
  if (prefetched_batch_) {
    prefetched_batch_->copier.wait();
    batch = std::move(prefetched_batch_->batch);
    prefetched_batch_.reset();
  } else {
    batch = collate_next_batch().to(device_);
  }
  if (copies_ahead_ && next_index_ < layout_.split.num_micro_batches()) prefetch_next_batch();
  return batch;
}

data::MicroBatch MicroBatchSource::collate_next_batch() {
  auto batch = input_.objective.collate(input_.samples, layout_.split.get_sample_indices(next_index_));
  ++next_index_;
  return batch;
}

void MicroBatchSource::prefetch_next_batch() {
  const int64_t index = next_index_;
  try {
    prefetched_batch_ = std::make_unique<PrefetchedBatch>(collate_next_batch(), device_);
  } catch (const std::exception& error) {
    if (!memory::detect_out_of_memory(error)) throw;
    copies_ahead_ = false;
    next_index_ = index;
  }
}

}  // namespace vlmtrain::engine
