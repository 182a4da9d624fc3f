#include "data/loader/prefetch_queue.h"

#include <utility>

namespace vlmtrain::data {

PrefetchQueue::PrefetchQueue(const SampleOrder& order, Cursor start, int64_t batch_units)
    : order_(&order),
      cursor_(std::move(start)),
      units_per_batch_(batch_units),
      extra_units_(std::make_unique<std::vector<std::atomic<int64_t>>>(static_cast<size_t>(order.num_sources()))) {
  iterators_.reserve(cursor_.sources.size());
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    iterators_.emplace_back(order, source, cursor_.sources[static_cast<size_t>(source)]);
  }
}

PrefetchQueue::QueuedSample PrefetchQueue::next() {
  if (unit_offset_ == unit_samples_.size()) {
    source_ = choose_next_source();
    const SourceIterator::Unit unit = iterators_[static_cast<size_t>(source_)].next();
    unit_samples_.assign(unit.samples.begin(), unit.samples.end());
    unit_begin_ = unit.begin;
    unit_offset_ = 0;
  }
  EpochPosition position = unit_begin_;
  position.offset += static_cast<int64_t>(unit_offset_);
  return {.sample = unit_samples_[unit_offset_++],
          .source = source_,
          .position = position,
          .unit_position = unit_position_};
}

int64_t PrefetchQueue::choose_next_source() {
  for (size_t source = 0; source < extra_units_->size(); ++source) {
    std::atomic<int64_t>& extra_units = (*extra_units_)[source];
    if (extra_units == 0) continue;
    --extra_units;
    unit_position_.reset();
    return static_cast<int64_t>(source);
  }
  unit_position_ = units_in_batch_;
  const int64_t source = order_->mixture_sampler().choose_source(cursor_);
  if (++units_in_batch_ == units_per_batch_) {
    units_in_batch_ = 0;
    ++cursor_.num_batches;
  }
  return source;
}

}  // namespace vlmtrain::data
