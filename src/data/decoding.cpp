#include "vlmtrain/data/decoding.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "data/on_workers.h"
#include "data/problem.h"

namespace vlmtrain::data {

namespace {

using MediaKeys = std::unordered_set<uint64_t>;

class SampleDecoder {
 public:
  SampleDecoder(const io::Records& records, const SampleProcessor& processor)
      : records_(records), processor_(processor) {}

  void decode(const std::vector<int64_t>& samples, int64_t workers,
              const std::function<void(int64_t num_done, int64_t total)>& on_progress) {
    const auto total = std::ssize(samples);
    parallel_for(
        total, workers, [&](int64_t i) { decode_one(samples[static_cast<size_t>(i)]); },
        [&](int64_t num_done) {
          if (on_progress) on_progress(num_done, total);
        });
  }

  std::map<int64_t, SampleProblem>& problems() { return problems_; }

 private:
  void decode_one(int64_t index) {
    try {
      make_sample(processor_, records_.at(index), index);
    } catch (...) {
      auto problem = to_sample_problem(std::current_exception());
      const std::lock_guard lock(mutex_);
      problems_.emplace(index, std::move(problem));
    }
  }

  const io::Records& records_;
  const SampleProcessor& processor_;
  std::mutex mutex_;
  std::map<int64_t, SampleProblem> problems_;
};

}  // namespace

std::map<int64_t, SampleProblem> find_undecodable_samples(
    const io::Records& records, const SampleProcessor& processor, const SampleIndex& sample_index,
    const ContentIndex& content_index, size_t dataset, int64_t workers,
    const std::function<void(int64_t num_done, int64_t total)>& on_progress) {
  const auto is_usable = [&](int64_t sample) {
    return sample_index.shapes.has(sample) && !sample_index.problems.contains(sample);
  };
  MediaKeys seen, seen_masks;
  std::vector<int64_t> representatives;
  std::vector<char> is_decoded(static_cast<size_t>(records.size()));
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample)) continue;
    bool has_new = false;
    for (const uint64_t medium : content_index.get_media_keys(dataset, sample))
      has_new = seen.insert(medium).second || has_new;
    for (const uint64_t mask : content_index.get_mask_keys(dataset, sample))
      has_new = seen_masks.insert(mask).second || has_new;
    if (has_new) representatives.push_back(sample);
    is_decoded[static_cast<size_t>(sample)] = has_new ? 1 : 0;
  }
  SampleDecoder decoder(records, processor);
  decoder.decode(representatives, workers, on_progress);
  if (decoder.problems().empty()) return {};

  MediaKeys suspect_media;
  for (const auto& [sample, problem] : decoder.problems()) {
    const auto& media = content_index.get_media_keys(dataset, sample);
    suspect_media.insert(media.begin(), media.end());
  }
  std::vector<int64_t> retries;
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample) || is_decoded[static_cast<size_t>(sample)] != 0) continue;
    const auto& media = content_index.get_media_keys(dataset, sample);
    const bool is_suspect = std::ranges::any_of(media, [&](uint64_t medium) { return suspect_media.contains(medium); });
    if (is_suspect) retries.push_back(sample);
  }
  decoder.decode(retries, workers, on_progress);
  return std::move(decoder.problems());
}

}  // namespace vlmtrain::data
