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

/// What is known of a sample's shape.
enum class Known : char {
  kNothing,
  kEarlier,  ///< what the cache says, which was not looked at yet
  kAsItWas,  ///< what the cache says, and nothing has changed
  kAnew      ///< something else than the cache says: another shape, or that there is none
};

/// Looks at samples on several threads; each index is one thread's alone.
class Look {
 public:
  Look(const io::Records& records, const SampleProcessor& processor, const OutlineSettings& settings)
      : records_(records),
        processor_(processor),
        settings_(settings),
        stamp_(settings.cache.empty() ? 0 : records.stamp()),
        indices_(chosen(records.size(), settings.most_samples)),
        known_(static_cast<size_t>(records.size())) {
    OutlineCache cache;
    if (!settings.cache.empty()) cache = read_outline_cache(settings.cache, settings.processor);
    cached_stamp_ = cache.stamp;
    cached_ = cache.shapes.size();
    found_ = std::move(cache.shapes);
    found_.resize(known_.size());
    for (size_t i = 0; i < found_.size(); ++i) {
      if (found_[i]) known_[i] = Known::kEarlier;
    }
  }

  Outlines at_all() {
    on_workers(
        std::ssize(indices_), settings_.workers,
        [this](int64_t place) { look_at(indices_[static_cast<size_t>(place)]); }, settings_.on_progress);
    for (size_t i = 0; i < found_.size(); ++i) {
      if (known_[i] == Known::kEarlier) settle(i, std::nullopt);
    }
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
    const auto& earlier = found_[place];
    const bool is_record_known = earlier && stamp_ != 0 && stamp_ == cached_stamp_;
    if (is_record_known && earlier->file_state == state_of(earlier->files)) {
      known_[place] = Known::kAsItWas;
      return;
    }
    const io::Record record = records_.at(index);
    CachedShape now;
    if (!settings_.cache.empty()) {
      now.fingerprint = fingerprint_of(record);
      now.files = files_of(record);
      now.file_state = state_of(now.files);
      if (earlier && is_same(*earlier, now)) {
        known_[place] = Known::kAsItWas;
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
      settle(place, std::move(now));
    } catch (...) {
      Problem problem = describe(std::current_exception());
      if (!problem.skippable) throw;
      settle(place, std::nullopt);
      const std::lock_guard lock(mutex_);
      bad_[index] = {.problem = {std::move(problem.reason), std::move(problem.message), problem.is_dropped},
                     .id = record.id,
                     .task = record.task};
    }
  }

  void settle(size_t place, std::optional<CachedShape> shape) {
    const bool is_change = shape.has_value() || found_[place].has_value();
    known_[place] = is_change ? Known::kAnew : Known::kNothing;
    found_[place] = std::move(shape);
  }

  static bool is_same(const CachedShape& one, const CachedShape& other) {
    return one.fingerprint == other.fingerprint && one.file_state == other.file_state;
  }

  bool is_news() const {
    return cached_stamp_ != stamp_ || cached_ > found_.size() ||
           std::ranges::find(known_, Known::kAnew) != known_.end();
  }

  Outlines outlines() {
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
      result.from_cache += known_[i] == Known::kAsItWas;
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
  const uint64_t stamp_;       // of the records; 0: not known
  uint64_t cached_stamp_ = 0;  // of the cache, as its size is
  size_t cached_ = 0;
  const std::vector<int64_t> indices_;  // of the samples to look at
  CachedShapes found_;                  // first what the cache says: a data set may be large
  std::vector<Known> known_;            // of each in found_
  std::mutex mutex_;                    // guards bad_
  std::map<int64_t, BadSample> bad_;    // by index
};

}  // namespace

Outlines outline_samples(const io::Records& records, const SampleProcessor& processor,
                         const OutlineSettings& settings) {
  VLMTRAIN_CHECK(settings.workers >= 1, "{} workers", settings.workers);
  return Look(records, processor, settings).at_all();
}

}  // namespace vlmtrain::data
