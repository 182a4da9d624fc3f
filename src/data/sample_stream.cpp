#include "vlmtrain/data/sample_stream.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/single_thread.h"

namespace vlmtrain::data {

IndexSource file_order(int64_t samples) {
  return [samples, next = int64_t{0}]() mutable -> std::optional<int64_t> {
    if (next >= samples) return std::nullopt;
    return next++;
  };
}

SampleStream::SampleStream(IndexSource source, MakeSample make, Settings settings)
    : SampleStream(
          [source = std::move(source)]() -> std::optional<DrawnPlace> {
            const auto index = source();
            return index ? std::optional(DrawnPlace{.index = *index}) : std::nullopt;
          },
          [make = std::move(make)](const DrawnPlace& place) { return make(place.index); }, settings) {}

SampleStream::SampleStream(DrawSource source, MakeDrawn make, Settings settings)
    : source_(std::move(source)),
      make_(std::move(make)),
      ahead_(static_cast<size_t>(std::max(settings.ahead, settings.workers))),
      bytes_ahead_(settings.bytes_ahead) {
  VLMTRAIN_CHECK(settings.workers >= 1, "{} workers", settings.workers);
  for (int64_t worker = 0; worker < settings.workers; ++worker) {
    workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

SampleStream::~SampleStream() {
  // All are asked before the first is joined, so that none begins another sample meanwhile.
  for (auto& worker : workers_) worker.request_stop();
}

std::optional<StreamItem> SampleStream::next() {
  std::unique_lock lock(mutex_);
  front_ready_.wait(lock, [this] { return slots_.empty() ? ended_ : slots_.front().ready; });
  if (slots_.empty()) {
    if (source_error_) std::rethrow_exception(source_error_);
    return std::nullopt;
  }
  StreamItem item = std::move(slots_.front().item);
  ready_bytes_ -= slots_.front().bytes;
  --ready_samples_;
  slots_.pop_front();
  room_.notify_all();  // what was taken may have been larger than several that now fit
  return item;
}

void SampleStream::work(const std::stop_token& stop) {
  memory::keep_aten_on_this_thread();
  std::unique_lock lock(mutex_);
  while (room_.wait(lock, stop, [this] { return ended_ || has_room(); }) && !stop.stop_requested()) {
    Slot* slot = claim();
    if (slot == nullptr) return;
    const DrawnPlace place{.index = slot->item.index, .seed = slot->seed};
    lock.unlock();
    Sample sample;
    std::exception_ptr error;
    try {
      sample = make_(place);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot->item.sample = std::move(sample);
    slot->item.error = std::move(error);
    slot->ready = true;
    slot->bytes = slot->item.sample.bytes();
    ready_bytes_ += slot->bytes;
    ++ready_samples_;
    largest_bytes_ = std::max(largest_bytes_, slot->bytes);
    if (slot == &slots_.front()) front_ready_.notify_one();
    if (bytes_ahead_ > 0) room_.notify_all();
  }
}

bool SampleStream::has_room() {
  if (slots_.size() >= ahead_) return false;
  if (bytes_ahead_ == 0 || slots_.empty()) return true;
  const int64_t being_made = std::ssize(slots_) - ready_samples_;
  if (ready_bytes_ + (being_made + 1) * largest_bytes_ <= bytes_ahead_) return true;
  held_back_ = true;
  return false;
}

SampleStream::Slot* SampleStream::claim() {
  if (ended_) return nullptr;
  try {
    if (const auto place = source_()) {
      Slot& slot = slots_.emplace_back();
      slot.item.index = place->index;
      slot.seed = place->seed;
      return &slot;
    }
  } catch (...) {
    source_error_ = std::current_exception();
  }
  ended_ = true;
  room_.notify_all();
  front_ready_.notify_one();
  return nullptr;
}

}  // namespace vlmtrain::data
