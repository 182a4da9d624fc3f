#include "vlmtrain/data/outlines.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "data/on_workers.h"
#include "data/outline_cache.h"
#include "data/problem.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

/// Looks at samples on several threads; each index is one thread's alone.
class Look {
 public:
  Look(const io::Records& records, const SampleProcessor& processor, const OutlineSettings& settings)
      : records_(records),
        processor_(processor),
        settings_(settings),
        stamp_(settings.cache.empty() ? 0 : records.stamp()),
        cache_(settings.cache.empty() ? OutlineCache() : read_outline_cache(settings.cache, settings.processor)),
        known_(cache_.shapes),
        indices_(chosen(records.size(), settings.most_samples)),
        found_(static_cast<size_t>(records.size())),
        is_as_it_was_(found_.size()) {}

  Outlines at_all() {
    on_workers(
        std::ssize(indices_), settings_.workers,
        [this](int64_t place) { look_at(indices_[static_cast<size_t>(place)]); }, settings_.on_progress);
    if (!settings_.cache.empty() && settings_.writes_cache && is_news()) {
      write_outline_cache(settings_.cache, settings_.processor, stamp_, found_);
    }
    return outlines();
  }

 private:
  static std::vector<int64_t> chosen(int64_t samples, int64_t most) {
    const int64_t count = most > 0 ? std::min(most, samples) : samples;
    std::vector<int64_t> indices(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) indices[static_cast<size_t>(i)] = i * samples / count;
    return indices;
  }

  void look_at(int64_t index) {
    const auto place = static_cast<size_t>(index);
    CachedShape* const known = known_at(place);
    const bool is_record_known = known != nullptr && stamp_ != 0 && stamp_ == cache_.stamp;
    if (is_record_known && known->file_state == state_of(known->files)) {
      take(place, *known);
      return;
    }
    const io::Record record = records_.at(index);
    CachedShape now;
    if (!settings_.cache.empty()) {
      now.fingerprint = fingerprint_of(record);
      now.files = files_of(record);
      now.file_state = state_of(now.files);
      if (known != nullptr && is_same(*known, now)) {
        take(place, *known);
        return;
      }
    }
    try {
      const Sample outline = make_outline(processor_, record, index);
      now.shape = shape_of(outline);
      now.making_bytes = outline.making_bytes;
      now.shrunk = outline.shrunk;
      now.id = record.id;
      now.task = record.task;
      found_[place] = std::move(now);
    } catch (...) {
      Problem problem = describe(std::current_exception());
      if (!problem.skippable) throw;
      const std::lock_guard lock(mutex_);
      bad_[index] = {.problem = {std::move(problem.reason), std::move(problem.message), problem.is_dropped},
                     .id = record.id,
                     .task = record.task};
    }
  }

  void take(size_t place, CachedShape& known) {
    found_[place] = std::move(known);
    is_as_it_was_[place] = 1;
  }

  static bool is_same(const CachedShape& one, const CachedShape& other) {
    return one.fingerprint == other.fingerprint && one.file_state == other.file_state;
  }

  /// Of an earlier look; null: nothing is known.
  CachedShape* known_at(size_t place) { return place < known_.size() && known_[place] ? &*known_[place] : nullptr; }

  bool is_news() {
    if (cache_.stamp != stamp_ || known_.size() > found_.size()) return true;
    for (size_t i = 0; i < found_.size(); ++i) {
      if (is_as_it_was_[i] == 0 && (found_[i] || known_at(i) != nullptr)) return true;
    }
    return false;
  }

  Outlines outlines() {
    known_ = {};  // a data set may be large
    Outlines result;
    result.are_all = indices_.size() == found_.size();
    result.shapes.resize(found_.size());
    result.ids.resize(found_.size());
    result.tasks.resize(found_.size());
    for (auto& [index, bad] : bad_) {
      const auto place = static_cast<size_t>(index);
      result.ids[place] = std::move(bad.id);
      result.tasks[place] = std::move(bad.task);
      result.problems.emplace(index, std::move(bad.problem));
    }
    for (size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i]) continue;
      result.from_cache += is_as_it_was_[i];
      result.making_bytes = std::max(result.making_bytes, found_[i]->making_bytes);
      if (found_[i]->shrunk) result.shrunk.emplace(static_cast<int64_t>(i), *found_[i]->shrunk);
      result.shapes[i] = std::move(found_[i]->shape);
      result.ids[i] = std::move(found_[i]->id);
      result.tasks[i] = std::move(found_[i]->task);
    }
    return result;
  }

  struct BadSample {
    SampleProblem problem;
    std::string id;
    std::string task;
  };

  const io::Records& records_;
  const SampleProcessor& processor_;
  const OutlineSettings& settings_;
  const uint64_t stamp_;  // of the records; 0: not known
  OutlineCache cache_;
  CachedShapes& known_;
  const std::vector<int64_t> indices_;  // of the samples to look at
  CachedShapes found_;
  std::vector<char> is_as_it_was_;    // by index, whether it is known_'s
  std::mutex mutex_;                  // guards bad_
  std::map<int64_t, BadSample> bad_;  // by index
};

}  // namespace

Outlines outline_samples(const io::Records& records, const SampleProcessor& processor,
                         const OutlineSettings& settings) {
  VLMTRAIN_CHECK(settings.workers >= 1, "{} workers", settings.workers);
  return Look(records, processor, settings).at_all();
}

}  // namespace vlmtrain::data
