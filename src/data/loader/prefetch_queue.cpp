#include "data/loader/prefetch_queue.h"

#include <utility>

namespace vlmtrain::data {

PrefetchQueue::PrefetchQueue(const SampleOrder& order, Cursor start, int64_t batch_units)
    : order_(&order),
      cursor_(std::move(start)),
      units_per_batch_(batch_units),
      num_requested_units_by_source_(
          std::make_unique<std::vector<std::atomic<int64_t>>>(static_cast<size_t>(order.num_sources()))) {
  iterators_.reserve(cursor_.sources.size());
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    iterators_.emplace_back(order, source, cursor_.sources[static_cast<size_t>(source)]);
  }
}

PrefetchQueue::QueuedSample PrefetchQueue::next() {
  if (num_returned_unit_samples_ == current_unit_samples_.size()) {
    source_ = take_next_source();
    const SourceIterator::Unit unit = iterators_[static_cast<size_t>(source_)].next();
    current_unit_samples_.assign(unit.samples.begin(), unit.samples.end());
    current_unit_begin_ = unit.begin;
    num_returned_unit_samples_ = 0;
  }
  EpochPosition position = current_unit_begin_;
  position.offset += static_cast<int64_t>(num_returned_unit_samples_);
  return {.sample_index = current_unit_samples_[num_returned_unit_samples_++],
          .source = source_,
          .position = position,
          .expected_unit_index = expected_unit_index_};
}

int64_t PrefetchQueue::take_next_source() {
  for (size_t source = 0; source < num_requested_units_by_source_->size(); ++source) {
    std::atomic<int64_t>& num_extra_units = (*num_requested_units_by_source_)[source];
    if (num_extra_units == 0) continue;
    --num_extra_units;
    expected_unit_index_.reset();
    return static_cast<int64_t>(source);
  }
  expected_unit_index_ = num_queued_batch_units_;
  const int64_t source = order_->mixture_sampler().draw_source(cursor_);
  if (++num_queued_batch_units_ == units_per_batch_) {
    num_queued_batch_units_ = 0;
    ++cursor_.num_batches;
  }
  return source;
}

}  // namespace vlmtrain::data
