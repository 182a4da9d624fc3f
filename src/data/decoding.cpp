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

class Decoding {
 public:
  Decoding(const io::Records& records, const SampleProcessor& processor) : records_(records), processor_(processor) {}

  void make(const std::vector<int64_t>& samples, int64_t workers,
            const std::function<void(int64_t done, int64_t all)>& on_progress) {
    const auto all = std::ssize(samples);
    on_workers(
        all, workers, [&](int64_t place) { make_one(samples[static_cast<size_t>(place)]); },
        [&](int64_t done) {
          if (on_progress) on_progress(done, all);
        });
  }

  std::map<int64_t, SampleProblem>& problems() { return problems_; }

 private:
  void make_one(int64_t index) {
    try {
      make_sample(processor_, records_.at(index), index);
    } catch (...) {
      auto problem = bad_sample(std::current_exception());
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

std::map<int64_t, SampleProblem> decode_all(const io::Records& records, const SampleProcessor& processor,
                                            const Outlines& outlines, const ContentIndex& index, size_t set,
                                            int64_t workers,
                                            const std::function<void(int64_t done, int64_t all)>& on_progress) {
  const auto is_usable = [&](int64_t sample) {
    return outlines.shapes.has(sample) && !outlines.problems.contains(sample);
  };
  MediaKeys seen, seen_masks;
  std::vector<int64_t> first;
  std::vector<char> is_made(static_cast<size_t>(records.size()));
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample)) continue;
    bool has_new = false;
    for (const uint64_t medium : index.media_of(set, sample)) has_new = seen.insert(medium).second || has_new;
    for (const uint64_t mask : index.masks_of(set, sample)) has_new = seen_masks.insert(mask).second || has_new;
    if (has_new) first.push_back(sample);
    is_made[static_cast<size_t>(sample)] = has_new ? 1 : 0;
  }
  Decoding decoding(records, processor);
  decoding.make(first, workers, on_progress);
  if (decoding.problems().empty()) return {};

  MediaKeys suspect;
  for (const auto& [sample, problem] : decoding.problems()) {
    const auto& media = index.media_of(set, sample);
    suspect.insert(media.begin(), media.end());
  }
  std::vector<int64_t> second;
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample) || is_made[static_cast<size_t>(sample)] != 0) continue;
    const auto& media = index.media_of(set, sample);
    const bool is_suspect = std::ranges::any_of(media, [&](uint64_t medium) { return suspect.contains(medium); });
    if (is_suspect) second.push_back(sample);
  }
  decoding.make(second, workers, on_progress);
  return std::move(decoding.problems());
}

}  // namespace vlmtrain::data
