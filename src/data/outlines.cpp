#include "vlmtrain/data/outlines.h"

#include <algorithm>
#include <exception>
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
        ids_(found_.size()),
        tasks_(found_.size()),
        problems_(found_.size()) {}

  Outlines at_all() {
    on_workers(
        std::ssize(indices_), settings_.workers,
        [this](int64_t place) { look_at(indices_[static_cast<size_t>(place)]); }, settings_.on_progress);
    if (!settings_.cache.empty() && settings_.writes_cache && is_news()) {
      write_outline_cache(settings_.cache, settings_.processor, {.stamp = stamp_, .shapes = found_});
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
    const CachedShape* const known = known_at(place);
    const bool is_record_known = known != nullptr && stamp_ != 0 && stamp_ == cache_.stamp;
    if (is_record_known && known->file_state == state_of(known->files)) {
      found_[place] = *known;
      return;
    }
    const io::Record record = records_.at(index);
    CachedShape now;
    if (!settings_.cache.empty()) {
      now.fingerprint = fingerprint_of(record);
      now.files = files_of(record);
      now.file_state = state_of(now.files);
      if (known != nullptr && is_same(*known, now)) {
        found_[place] = *known;
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
      ids_[place] = record.id;
      tasks_[place] = record.task;
      problems_[place] = SampleProblem{std::move(problem.reason), std::move(problem.message), problem.is_dropped};
    }
  }

  static bool is_same(const CachedShape& one, const CachedShape& other) {
    return one.fingerprint == other.fingerprint && one.file_state == other.file_state;
  }

  /// Of an earlier look; null: nothing is known.
  const CachedShape* known_at(size_t place) const {
    return place < known_.size() && known_[place] ? &*known_[place] : nullptr;
  }

  bool is_news() const {
    if (cache_.stamp != stamp_ || known_.size() > found_.size()) return true;
    for (size_t i = 0; i < found_.size(); ++i) {
      const CachedShape* const known = known_at(i);
      if (found_[i].has_value() != (known != nullptr)) return true;
      if (found_[i] && !is_same(*found_[i], *known)) return true;
    }
    return false;
  }

  Outlines outlines() {
    Outlines result;
    result.are_all = indices_.size() == found_.size();
    result.shapes.resize(found_.size());
    result.ids = std::move(ids_);
    result.tasks = std::move(tasks_);
    for (size_t i = 0; i < found_.size(); ++i) {
      if (problems_[i]) result.problems.emplace(static_cast<int64_t>(i), std::move(*problems_[i]));
      if (!found_[i]) continue;
      const CachedShape* const known = known_at(i);
      result.from_cache += known != nullptr && is_same(*known, *found_[i]) ? 1 : 0;
      result.making_bytes = std::max(result.making_bytes, found_[i]->making_bytes);
      if (found_[i]->shrunk) result.shrunk.emplace(static_cast<int64_t>(i), *found_[i]->shrunk);
      result.shapes[i] = std::move(found_[i]->shape);
      result.ids[i] = std::move(found_[i]->id);
      result.tasks[i] = std::move(found_[i]->task);
    }
    return result;
  }

  const io::Records& records_;
  const SampleProcessor& processor_;
  const OutlineSettings& settings_;
  const uint64_t stamp_;  // of the records; 0: not known
  OutlineCache cache_;
  CachedShapes& known_;
  const std::vector<int64_t> indices_;  // of the samples to look at
  CachedShapes found_;
  std::vector<std::string> ids_;    // of bad samples
  std::vector<std::string> tasks_;  // of bad samples
  std::vector<std::optional<SampleProblem>> problems_;
};

}  // namespace

Outlines outline_samples(const io::Records& records, const SampleProcessor& processor,
                         const OutlineSettings& settings) {
  VLMTRAIN_CHECK(settings.workers >= 1, "{} workers", settings.workers);
  return Look(records, processor, settings).at_all();
}

}  // namespace vlmtrain::data
