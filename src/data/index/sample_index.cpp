#include "vlmtrain/data/index/sample_index.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "data/index/parallel_for.h"
#include "data/index/sample_index_cache.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/index/bad_samples.h"

namespace vlmtrain::data {

namespace {

/// Samples that are checked in parallel before their results are stored. With larger chunks,
/// threads wait for each other less often, and more results are held in memory. Chosen without
/// measurement.
constexpr int64_t kChunkSamples = 8192;

/// The result of checking a sample.
enum class EntryState : char {
  kNotChecked,
  kUnchanged,  ///< taken from the cache
  kUpdated,    ///< differs from the cache, or is not in it
  kBad
};

/// A sample of the current chunk.
struct Entry {
  std::string line{};  // line of the cache: first the one read, then the one to write
  EntryState state = EntryState::kNotChecked;
  bool was_cached = false;  // the cache had a line for the sample
  CachedSample sample{};
  std::vector<io::Notice> notices{};  // notices of a checked sample
  SampleProblem problem{};            // problem of a bad sample
};

/// The state of index_samples(). Worker threads check the samples of a chunk; only one thread
/// accesses each entry.
class SampleIndexer {
 public:
  SampleIndexer(const io::Records& records, const SampleProcessor& processor, const SampleIndexSettings& settings)
      : records_(records),
        processor_(processor),
        settings_(settings),
        version_hash_(settings.cache.empty() ? 0 : records.version_hash()),
        indices_(select_indices(records.size(), settings.max_samples)) {
    sample_index_.is_complete = std::ssize(indices_) == records.size();
    sample_index_.shapes = SampleShapes(records.size());
    sample_index_.ids = TextColumn(records.size());
    sample_index_.tasks = DictionaryTextColumn(records.size());
    if (settings.cache.empty()) return;
    cache_ = SampleIndexCacheReader(settings.cache, settings.processor);
    kinds_ = cache_.kinds();
    if (settings.keep_fingerprints)
      sample_index_.fingerprints.content_hashes.resize(static_cast<size_t>(records.size()));
    if (cache_.version_hash() != version_hash_ || cache_.samples() != records.size()) start_writing(0);
  }

  SampleIndex run() {
    auto remaining_indices = std::span<const int64_t>(indices_);
    for (int64_t first = 0; first < records_.size(); first += kChunkSamples) {
      std::vector<Entry> entries(static_cast<size_t>(std::min(kChunkSamples, records_.size() - first)));
      for (Entry& entry : entries) entry.line = cache_.next();
      const auto num_in_chunk =
          std::ranges::lower_bound(remaining_indices, first + std::ssize(entries)) - remaining_indices.begin();
      check_samples(remaining_indices.first(static_cast<size_t>(num_in_chunk)), first, entries);
      remaining_indices = remaining_indices.subspan(static_cast<size_t>(num_in_chunk));
      assign_notice_kinds(entries);
      write(entries);
      for (int64_t i = 0; i < std::ssize(entries); ++i) store(first + i, entries[static_cast<size_t>(i)]);
    }
    if (writer_) writer_->commit(kinds_);
    return std::move(sample_index_);
  }

 private:
  /// Returns `max_samples` evenly spaced indices, or all if it is 0.
  static std::vector<int64_t> select_indices(int64_t samples, int64_t max_samples) {
    const int64_t count = max_samples > 0 ? std::min(max_samples, samples) : samples;
    std::vector<int64_t> indices(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) indices[static_cast<size_t>(i)] = i * samples / count;
    return indices;
  }

  void check_samples(std::span<const int64_t> indices, int64_t first, std::vector<Entry>& entries) const {
    const auto num_done_before = std::distance(indices_.data(), indices.data());
    std::function<void(int64_t)> on_progress;
    if (settings_.on_progress)
      on_progress = [&](int64_t num_done) { settings_.on_progress(num_done_before + num_done); };
    const auto check_one = [&](int64_t i) {
      const int64_t index = indices[static_cast<size_t>(i)];
      check_sample(index, entries[static_cast<size_t>(index - first)]);
    };
    parallel_for(std::ssize(indices), settings_.workers, check_one, on_progress);
  }

  /// Takes the result from the cache if record and files are unchanged; otherwise checks the
  /// sample.
  void check_sample(int64_t index, Entry& entry) const {
    auto cached_sample = entry.line.empty() ? std::nullopt : parse_cache_line(entry.line, kinds_.size());
    const bool is_record_unchanged = cached_sample && version_hash_ != 0 && version_hash_ == cache_.version_hash();
    const auto keep_cached = [&] {
      entry.sample = std::move(*cached_sample);
      entry.state = EntryState::kUnchanged;
    };
    if (is_record_unchanged && cached_sample->file_state == compute_file_state(cached_sample->files))
      return keep_cached();
    const io::Record record = records_.at(index);
    entry.was_cached = cached_sample.has_value();
    CachedSample current;
    current.id = record.id;
    current.task = record.task;
    if (!settings_.cache.empty()) {
      current.fingerprint = compute_fingerprint(record);
      current.files = list_files(record);
      current.file_state = compute_file_state(current.files);
      if (cached_sample && is_still_valid(*cached_sample, current, record)) return keep_cached();
    }
    try {
      const Sample header_sample = make_header_sample(processor_, record, index);
      current.shape = get_shape(header_sample);
      current.decode_bytes = header_sample.decode_bytes;
      current.shrunk = header_sample.shrunk;
      current.num_record_notices = std::ssize(record.notices);
      entry.notices = header_sample.notices;
      entry.state = EntryState::kUpdated;
    } catch (...) {
      entry.problem = to_sample_problem(std::current_exception());
      entry.state = EntryState::kBad;
    }
    entry.sample = std::move(current);
  }

  /// Returns whether the cached sample is still valid for the record.
  bool is_still_valid(const CachedSample& cached_sample, const CachedSample& current, const io::Record& record) const {
    return cached_sample.fingerprint == current.fingerprint && cached_sample.file_state == current.file_state &&
           cached_sample.id == current.id && cached_sample.task == current.task &&
           has_same_notices(cached_sample, record.notices);
  }

  bool has_same_notices(const CachedSample& cached_sample, const std::vector<io::Notice>& notices) const {
    if (cached_sample.num_record_notices != std::ssize(notices) ||
        cached_sample.num_record_notices > std::ssize(cached_sample.notices)) {
      return false;
    }
    const auto is_same_kind = [this](const CachedNotice& cached, const io::Notice& notice) {
      return cached.kind == kinds_.find(notice.kind);
    };
    return std::equal(
        notices.begin(), notices.end(), cached_sample.notices.begin(),
        [&](const io::Notice& notice, const CachedNotice& cached) { return is_same_kind(cached, notice); });
  }

  /// Assigns ids to new kinds, in data set order. Only the first sample of a kind keeps its
  /// example.
  void assign_notice_kinds(std::vector<Entry>& entries) {
    for (Entry& entry : entries) {
      for (const auto& [kind, example] : entry.notices) {
        const int64_t num_kinds_before = kinds_.size();
        const bool is_full = num_kinds_before >= static_cast<int64_t>(kMaxNoticeKinds) && !kinds_.find(kind);
        const int64_t kind_id = kinds_.find_or_add(is_full ? kOtherNoticesKind : kind);
        entry.sample.notices.push_back({.kind = kind_id, .example = kinds_.size() > num_kinds_before ? example : ""});
      }
    }
  }

  /// Writes the entries to the new cache file. The file is started at the first chunk that differs
  /// from the old one.
  void write(std::vector<Entry>& entries) {
    if (settings_.cache.empty() || !settings_.write_cache) return;
    bool has_changes = false;
    for (Entry& entry : entries) {
      if (entry.state == EntryState::kUnchanged) continue;
      std::string line =
          entry.state == EntryState::kUpdated ? to_cache_line(entry.sample) : to_cache_line(std::nullopt);
      has_changes = has_changes || line != entry.line;
      entry.line = std::move(line);
    }
    if (has_changes && !writer_) start_writing(std::ssize(entries));
    if (!writer_) return;
    for (const Entry& entry : entries) writer_->add(entry.line);
  }

  /// Starts a new cache file with the lines that were read from the old one, except the last
  /// `num_unused_lines`, which belong to the current chunk.
  void start_writing(int64_t num_unused_lines) {
    if (!settings_.write_cache) return;
    writer_.emplace(settings_.cache, settings_.processor, version_hash_, records_.size());
    cache_.copy_lines(*writer_, num_unused_lines);
  }

  /// Moves the result to sample_index_.
  void store(int64_t index, Entry& entry) {
    if (entry.state == EntryState::kNotChecked) return;
    sample_index_.num_changed += entry.was_cached && entry.state != EntryState::kUnchanged ? 1 : 0;
    sample_index_.ids.set(index, entry.sample.id);
    sample_index_.tasks.set(index, entry.sample.task);
    if (entry.state == EntryState::kBad) {
      sample_index_.problems.emplace(index, std::move(entry.problem));
      return;
    }
    count_notices(entry.sample);
    if (settings_.keep_fingerprints && !settings_.cache.empty()) store_fingerprints(index, entry.sample);
    sample_index_.shapes.set(index, entry.sample.shape);
    if (entry.sample.shrunk) sample_index_.shrunk.emplace(index, *entry.sample.shrunk);
    sample_index_.decode_bytes = std::max(sample_index_.decode_bytes, entry.sample.decode_bytes);
    sample_index_.num_from_cache += entry.state == EntryState::kUnchanged ? 1 : 0;
  }

  void count_notices(const CachedSample& sample) {
    if (sample.notices.empty()) return;
    std::vector<io::Notice> notices;
    notices.reserve(sample.notices.size());
    for (const auto& [kind, example] : sample.notices) {
      notices.push_back({.kind = kinds_.name(kind), .example = example});
    }
    sample_index_.notices.add(sample.id, notices);
  }

  void store_fingerprints(int64_t index, const CachedSample& sample) {
    sample_index_.fingerprints.content_hashes[static_cast<size_t>(index)] = sample.fingerprint;
    for (const auto& file : sample.files) {
      sample_index_.fingerprints.file_hashes.emplace_back(ContentHash().add(normalize_path(file)).value(), index);
    }
  }

  const io::Records& records_;
  const SampleProcessor& processor_;
  const SampleIndexSettings& settings_;
  const uint64_t version_hash_;         // of the records; 0: unknown
  const std::vector<int64_t> indices_;  // indices of the samples to check, ascending
  SampleIndexCacheReader cache_;        // of an earlier call
  NoticeKindTable kinds_;               // kinds of the cache, then new ones
  std::optional<SampleIndexCacheWriter> writer_;
  SampleIndex sample_index_;
};

using MediaKeys = std::unordered_set<uint64_t>;

/// Decodes samples on several threads and collects the problems of those that fail.
class SampleDecoder {
 public:
  SampleDecoder(const io::Records& records, const SampleProcessor& processor)
      : records_(records), processor_(processor) {}

  void decode(const std::vector<int64_t>& samples, int64_t workers,
              const std::function<void(int64_t num_done, int64_t total)>& on_progress) {
    const auto total = std::ssize(samples);
    parallel_for(
        total, workers, [&](int64_t i) { decode_sample(samples[static_cast<size_t>(i)]); },
        [&](int64_t num_done) {
          if (on_progress) on_progress(num_done, total);
        });
  }

  std::map<int64_t, SampleProblem>& problems() { return problems_; }

 private:
  void decode_sample(int64_t index) {
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

SampleIndex index_samples(const io::Records& records, const SampleProcessor& processor,
                          const SampleIndexSettings& settings) {
  VLMTRAIN_CHECK(settings.workers >= 1, "{} workers", settings.workers);
  return SampleIndexer(records, processor, settings).run();
}

SharedContent find_shared_content(const ContentFingerprints& fingerprints, ContentFingerprints& other_fingerprints) {
  std::ranges::sort(other_fingerprints.content_hashes);
  std::ranges::sort(other_fingerprints.file_hashes);
  SharedContent shared;
  std::vector<char> is_shared_sample(fingerprints.content_hashes.size());
  for (size_t i = 0; i < fingerprints.content_hashes.size(); ++i) {
    const uint64_t content = fingerprints.content_hashes[i];
    if (content == 0 || !std::ranges::binary_search(other_fingerprints.content_hashes, content)) continue;
    is_shared_sample[i] = 1;
    shared.samples.push_back(static_cast<int64_t>(i));
  }
  for (const auto& [file, index] : fingerprints.file_hashes) {
    const auto match =
        std::ranges::lower_bound(other_fingerprints.file_hashes, file, {}, &std::pair<uint64_t, int64_t>::first);
    const bool is_shared = match != other_fingerprints.file_hashes.end() && match->first == file;
    if (is_shared && is_shared_sample[static_cast<size_t>(index)] == 0)
      shared.samples_with_shared_files.push_back(index);
  }
  std::ranges::sort(shared.samples_with_shared_files);
  const auto unique_end = std::unique(shared.samples_with_shared_files.begin(), shared.samples_with_shared_files.end());
  shared.samples_with_shared_files.erase(unique_end, shared.samples_with_shared_files.end());
  return shared;
}

std::map<int64_t, SampleProblem> find_undecodable_samples(
    const io::Records& records, const SampleProcessor& processor, const SampleIndex& sample_index,
    const ContentIndex& content_index, size_t dataset, int64_t workers,
    const std::function<void(int64_t num_done, int64_t total)>& on_progress) {
  const auto is_usable = [&](int64_t sample) {
    return sample_index.shapes.is_known(sample) && !sample_index.problems.contains(sample);
  };
  MediaKeys seen, seen_masks;
  // First pass: decode samples that have a medium or mask which no earlier sample has.
  std::vector<int64_t> representatives;
  std::vector<char> is_decoded(static_cast<size_t>(records.size()));
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample)) continue;
    bool has_new_problems = false;
    for (const uint64_t medium : content_index.get_media_keys(dataset, sample))
      has_new_problems = seen.insert(medium).second || has_new_problems;
    for (const uint64_t mask : content_index.get_mask_keys(dataset, sample))
      has_new_problems = seen_masks.insert(mask).second || has_new_problems;
    if (has_new_problems) representatives.push_back(sample);
    is_decoded[static_cast<size_t>(sample)] = has_new_problems ? 1 : 0;
  }
  SampleDecoder decoder(records, processor);
  decoder.decode(representatives, workers, on_progress);
  if (decoder.problems().empty()) return {};

  // Second pass: any medium of a failed sample may be the cause, so that the other samples with
  // these media are decoded too.
  MediaKeys suspect_media;
  for (const auto& [sample, problem] : decoder.problems()) {
    const auto& media = content_index.get_media_keys(dataset, sample);
    suspect_media.insert(media.begin(), media.end());
  }
  std::vector<int64_t> samples_to_retry;
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample) || is_decoded[static_cast<size_t>(sample)] != 0) continue;
    const auto& media = content_index.get_media_keys(dataset, sample);
    const bool is_suspect = std::ranges::any_of(media, [&](uint64_t medium) { return suspect_media.contains(medium); });
    if (is_suspect) samples_to_retry.push_back(sample);
  }
  decoder.decode(samples_to_retry, workers, on_progress);
  return std::move(decoder.problems());
}

}  // namespace vlmtrain::data
