#include "vlmtrain/data/loader/sample_stream.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/cpu_info.h"

namespace vlmtrain::data {

IndexGenerator make_sequential_generator(int64_t samples) {
  return [samples, next = int64_t{0}]() mutable -> std::optional<int64_t> {
    if (next >= samples) return std::nullopt;
    return next++;
  };
}

SampleStream::SampleStream(IndexGenerator source, SampleFunction make, Settings settings)
    : SampleStream(
          [source = std::move(source)]() -> std::optional<SampleRequest> {
            const auto index = source();
            return index ? std::optional(SampleRequest{.index = *index}) : std::nullopt;
          },
          [make = std::move(make)](const SampleRequest& request) { return make(request.index); }, settings) {}

SampleStream::SampleStream(SampleRequestGenerator source, SampleRequestHandler make, Settings settings)
    : request_generator_(std::move(source)),
      process_request_(std::move(make)),
      max_prefetch_samples_(static_cast<size_t>(std::max(settings.max_prefetch_samples, settings.num_workers))),
      max_prefetch_bytes_(settings.prefetch_bytes) {
  VLMTRAIN_CHECK(settings.num_workers >= 1, "{} workers", settings.num_workers);
  for (int64_t worker = 0; worker < settings.num_workers; ++worker) {
    workers_.emplace_back([this](const std::stop_token& stop) { run_worker(stop); });
  }
}

SampleStream::~SampleStream() {
  // Request all threads to stop before joining the first, so that no other one starts a sample
  // meanwhile.
  for (auto& worker : workers_) worker.request_stop();
}

std::optional<StreamItem> SampleStream::next() {
  std::unique_lock lock(mutex_);
  front_ready_.wait(lock, [this] { return slots_.empty() ? has_sequence_ended_ : slots_.front().is_ready; });
  if (slots_.empty()) {
    if (generator_error_) std::rethrow_exception(generator_error_);
    return std::nullopt;
  }
  StreamItem item = std::move(slots_.front().item);
  ready_bytes_ -= slots_.front().bytes;
  --num_ready_samples_;
  slots_.pop_front();
  slot_available_.notify_all();  // several smaller samples may fit into the freed memory
  return item;
}

void SampleStream::run_worker(const std::stop_token& stop) {
  memory::use_single_aten_thread();
  std::unique_lock lock(mutex_);
  while (slot_available_.wait(lock, stop, [this] { return has_sequence_ended_ || can_start_sample(); }) &&
         !stop.stop_requested()) {
    SampleSlot* slot = claim_slot();
    if (slot == nullptr) return;
    const SampleRequest request{.index = slot->item.index, .seed = slot->seed};
    lock.unlock();
    Sample sample;
    std::exception_ptr error;
    try {
      sample = process_request_(request);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot->item.sample = std::move(sample);
    slot->item.error = std::move(error);
    slot->is_ready = true;
    slot->bytes = slot->item.sample.bytes();
    ready_bytes_ += slot->bytes;
    ++num_ready_samples_;
    largest_sample_bytes_ = std::max(largest_sample_bytes_, slot->bytes);
    if (slot == &slots_.front()) front_ready_.notify_one();
    if (max_prefetch_bytes_ > 0) slot_available_.notify_all();
  }
}

bool SampleStream::can_start_sample() {
  if (slots_.size() >= max_prefetch_samples_) return false;
  if (max_prefetch_bytes_ == 0 || slots_.empty()) return true;
  // Samples that are being processed, and the one to start, count as the largest one so far.
  const int64_t num_samples_in_progress = std::ssize(slots_) - num_ready_samples_;
  if (ready_bytes_ + (num_samples_in_progress + 1) * largest_sample_bytes_ <= max_prefetch_bytes_) return true;
  was_memory_limited_ = true;
  return false;
}

SampleStream::SampleSlot* SampleStream::claim_slot() {
  if (has_sequence_ended_) return nullptr;
  try {
    if (const auto request = request_generator_()) {
      SampleSlot& slot = slots_.emplace_back();
      slot.item.index = request->index;
      slot.seed = request->seed;
      return &slot;
    }
  } catch (...) {
    generator_error_ = std::current_exception();
  }
  has_sequence_ended_ = true;
  slot_available_.notify_all();
  front_ready_.notify_one();
  return nullptr;
}

}  // namespace vlmtrain::data
