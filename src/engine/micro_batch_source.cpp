#include "engine/micro_batch_source.h"

#include <utility>

#include "vlmtrain/memory/copy_beside.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::engine {

struct MicroBatchSource::Ahead {
  Ahead(data::MicroBatch collated, at::Device device) : batch(std::move(collated)), copy(device) {
    for (at::Tensor* tensor : batch.tensors()) {
      if (tensor->defined()) *tensor = copy.add(*tensor);
    }
  }

  data::MicroBatch batch;
  memory::CopyBeside copy;  // destroyed first: waits for copies into the batch
};

MicroBatchSource::MicroBatchSource(const StepInput& input, const StepLayout& layout, at::Device device)
    : input_(input), layout_(layout), device_(device), copies_ahead_(layout.copies_ahead && device.is_cuda()) {}

MicroBatchSource::~MicroBatchSource() = default;

data::MicroBatch MicroBatchSource::next() {
  const memory::InComponent place(memory::Component::kInput);
  data::MicroBatch batch;
  if (ahead_) {
    ahead_->copy.wait();
    batch = std::move(ahead_->batch);
    ahead_.reset();
  } else {
    batch = collate_next().to(device_);
  }
  if (copies_ahead_ && next_ < layout_.cut.micro_batches()) copy_ahead();
  return batch;
}

data::MicroBatch MicroBatchSource::collate_next() {
  auto batch = input_.objective.collate(input_.samples, layout_.cut.micro_batch(next_));
  ++next_;
  return batch;
}

void MicroBatchSource::copy_ahead() {
  const int64_t begun = next_;
  try {
    ahead_ = std::make_unique<Ahead>(collate_next(), device_);
  } catch (const std::exception& error) {
    if (!memory::shortage_in(error)) throw;
    copies_ahead_ = false;
    next_ = begun;
  }
}

}  // namespace vlmtrain::engine
