#include "vlmtrain/data/outlines.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "data/on_workers.h"
#include "data/outline_cache.h"
#include "data/problem.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {

namespace {

/// Samples that are looked at before what was found is put away in columns and in the cache.
constexpr int64_t kAtOnce = 8192;

/// What is known of a sample's shape.
enum class Known : char {
  kNotLooked,
  kAsItWas,  ///< what the cache says, and nothing has changed
  kAnew,     ///< something else than the cache says
  kBad
};

/// What the cache says of a sample, and what was found.
struct Finding {
  std::string line{};  // of the cache: first as it was read, then as it is to be written
  Known known = Known::kNotLooked;
  bool is_change = false;  // of what the cache has
  CachedShape shape{};
  std::vector<io::Notice> notices{};  // found anew
  SampleProblem problem{};            // where it is bad
};

/// Looks at samples on several threads, many at once; each finding is one thread's alone.
class Look {
 public:
  Look(const io::Records& records, const SampleProcessor& processor, const OutlineSettings& settings)
      : records_(records),
        processor_(processor),
        settings_(settings),
        stamp_(settings.cache.empty() ? 0 : records.stamp()),
        indices_(chosen(records.size(), settings.most_samples)) {
    outlines_.are_all = std::ssize(indices_) == records.size();
    outlines_.shapes = SampleShapes(records.size());
    outlines_.ids = TextColumn(records.size());
    outlines_.tasks = RepeatedTextColumn(records.size());
    if (settings.cache.empty()) return;
    cache_ = OutlineCacheReader(settings.cache, settings.processor);
    kinds_ = cache_.kinds();
    if (settings.keeps_prints) outlines_.prints.contents.resize(static_cast<size_t>(records.size()));
    if (cache_.stamp() != stamp_ || cache_.samples() != records.size()) start_writing(0);
  }

  Outlines at_all() {
    auto left = std::span<const int64_t>(indices_);
    for (int64_t first = 0; first < records_.size(); first += kAtOnce) {
      std::vector<Finding> findings(static_cast<size_t>(std::min(kAtOnce, records_.size() - first)));
      for (Finding& finding : findings) finding.line = cache_.next();
      const auto here = std::ranges::lower_bound(left, first + std::ssize(findings)) - left.begin();
      look_at(left.first(static_cast<size_t>(here)), first, findings);
      left = left.subspan(static_cast<size_t>(here));
      number_notices(findings);
      write(findings);
      for (int64_t i = 0; i < std::ssize(findings); ++i) put_away(first + i, findings[static_cast<size_t>(i)]);
    }
    if (writer_) writer_->commit(kinds_);
    return std::move(outlines_);
  }

 private:
  static std::vector<int64_t> chosen(int64_t samples, int64_t most) {
    const int64_t count = most > 0 ? std::min(most, samples) : samples;
    std::vector<int64_t> indices(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) indices[static_cast<size_t>(i)] = i * samples / count;
    return indices;
  }

  void look_at(std::span<const int64_t> indices, int64_t first, std::vector<Finding>& findings) const {
    const auto done_before = std::distance(indices_.data(), indices.data());
    std::function<void(int64_t)> on_progress;
    if (settings_.on_progress) on_progress = [&](int64_t done) { settings_.on_progress(done_before + done); };
    const auto look_at_one = [&](int64_t place) {
      const int64_t index = indices[static_cast<size_t>(place)];
      look_at(index, findings[static_cast<size_t>(index - first)]);
    };
    on_workers(std::ssize(indices), settings_.workers, look_at_one, on_progress);
  }

  void look_at(int64_t index, Finding& finding) const {
    auto earlier = finding.line.empty() ? std::nullopt : shape_in(finding.line, kinds_.size());
    const bool is_record_known = earlier && stamp_ != 0 && stamp_ == cache_.stamp();
    const auto stay = [&] {
      finding.shape = std::move(*earlier);
      finding.known = Known::kAsItWas;
    };
    if (is_record_known && earlier->file_state == state_of(earlier->files)) return stay();
    const io::Record record = records_.at(index);
    finding.is_change = earlier.has_value();
    CachedShape now;
    now.id = record.id;
    now.task = record.task;
    if (!settings_.cache.empty()) {
      now.fingerprint = fingerprint_of(record);
      now.files = files_of(record);
      now.file_state = state_of(now.files);
      if (earlier && is_same(*earlier, now, record)) return stay();
    }
    try {
      const Sample outline = make_outline(processor_, record, index);
      now.shape = shape_of(outline);
      now.making_bytes = outline.making_bytes;
      now.shrunk = outline.shrunk;
      now.notices_of_record = std::ssize(record.notices);
      finding.notices = outline.notices;
      finding.known = Known::kAnew;
    } catch (...) {
      finding.problem = bad_sample(std::current_exception());
      finding.known = Known::kBad;
    }
    finding.shape = std::move(now);
  }

  /// Whether the cache's sample is that of the record.
  bool is_same(const CachedShape& earlier, const CachedShape& now, const io::Record& record) const {
    return earlier.fingerprint == now.fingerprint && earlier.file_state == now.file_state && earlier.id == now.id &&
           earlier.task == now.task && has_same_notices(earlier, record.notices);
  }

  bool has_same_notices(const CachedShape& earlier, const std::vector<io::Notice>& notices) const {
    if (earlier.notices_of_record != std::ssize(notices) || earlier.notices_of_record > std::ssize(earlier.notices)) {
      return false;
    }
    const auto is_same_kind = [this](const CachedNotice& cached, const io::Notice& notice) {
      return cached.kind == kinds_.find(notice.kind);
    };
    return std::equal(
        notices.begin(), notices.end(), earlier.notices.begin(),
        [&](const io::Notice& notice, const CachedNotice& cached) { return is_same_kind(cached, notice); });
  }

  /// Gives kinds that are new their numbers. The first sample of a kind keeps its example.
  void number_notices(std::vector<Finding>& findings) {
    for (Finding& finding : findings) {
      for (const auto& [kind, example] : finding.notices) {
        const int64_t before = kinds_.size();
        const bool is_too_many = before >= static_cast<int64_t>(kMostNoticeKinds) && !kinds_.find(kind);
        const int64_t number = kinds_.number_of(is_too_many ? kOtherNotices : kind);
        finding.shape.notices.push_back({.kind = number, .example = kinds_.size() > before ? example : ""});
      }
    }
  }

  /// From the first finding on that is another than the cache's.
  void write(std::vector<Finding>& findings) {
    if (settings_.cache.empty() || !settings_.writes_cache) return;
    bool is_news = false;
    for (Finding& finding : findings) {
      if (finding.known == Known::kAsItWas) continue;
      std::string line = finding.known == Known::kAnew ? line_of(finding.shape) : line_of(std::nullopt);
      is_news = is_news || line != finding.line;
      finding.line = std::move(line);
    }
    if (is_news && !writer_) start_writing(std::ssize(findings));
    if (!writer_) return;
    for (const Finding& finding : findings) writer_->add(finding.line);
  }

  /// `ahead`: lines that were read of the cache and not looked at.
  void start_writing(int64_t ahead) {
    if (!settings_.writes_cache) return;
    writer_.emplace(settings_.cache, settings_.processor, stamp_, records_.size());
    cache_.repeat(*writer_, ahead);
  }

  void put_away(int64_t index, Finding& finding) {
    if (finding.known == Known::kNotLooked) return;
    outlines_.changed += finding.is_change && finding.known != Known::kAsItWas ? 1 : 0;
    outlines_.ids.set(index, finding.shape.id);
    outlines_.tasks.set(index, finding.shape.task);
    if (finding.known == Known::kBad) {
      outlines_.problems.emplace(index, std::move(finding.problem));
      return;
    }
    take_notices(finding.shape);
    if (settings_.keeps_prints && !settings_.cache.empty()) keep_prints(index, finding.shape);
    outlines_.shapes.set(index, finding.shape.shape);
    if (finding.shape.shrunk) outlines_.shrunk.emplace(index, *finding.shape.shrunk);
    outlines_.making_bytes = std::max(outlines_.making_bytes, finding.shape.making_bytes);
    outlines_.from_cache += finding.known == Known::kAsItWas ? 1 : 0;
  }

  void take_notices(const CachedShape& shape) {
    if (shape.notices.empty()) return;
    std::vector<io::Notice> notices;
    notices.reserve(shape.notices.size());
    for (const auto& [kind, example] : shape.notices) {
      notices.push_back({.kind = kinds_.name(kind), .example = example});
    }
    outlines_.notices.add(shape.id, notices);
  }

  void keep_prints(int64_t index, const CachedShape& shape) {
    outlines_.prints.contents[static_cast<size_t>(index)] = shape.fingerprint;
    for (const auto& file : shape.files) {
      outlines_.prints.files.emplace_back(ContentHash().add(plain_path(file)).value(), index);
    }
  }

  const io::Records& records_;
  const SampleProcessor& processor_;
  const OutlineSettings& settings_;
  const uint64_t stamp_;                // of the records; 0: not known
  const std::vector<int64_t> indices_;  // of the samples to look at, ascending
  OutlineCacheReader cache_;            // as an earlier look left it
  NoticeKinds kinds_;                   // of the cache, and those that were met since
  std::optional<OutlineCacheWriter> writer_;
  Outlines outlines_;
};

}  // namespace

Outlines outline_samples(const io::Records& records, const SampleProcessor& processor,
                         const OutlineSettings& settings) {
  VLMTRAIN_CHECK(settings.workers >= 1, "{} workers", settings.workers);
  return Look(records, processor, settings).at_all();
}

}  // namespace vlmtrain::data
