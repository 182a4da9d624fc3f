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
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::data {

namespace {

/// Samples that are checked in parallel before their results are stored. With larger chunks,
/// threads wait for each other less often, and more results are held in memory. Chosen without
/// measurement.
constexpr int64_t kSamplesPerChunk = 8192;

/// The result of checking a sample.
enum class SampleCheckState : char {
  kNotChecked,
  kUnchanged,  ///< taken from the cache
  kUpdated,    ///< differs from the cache, or is not in it
  kBad
};

/// A sample of the current chunk.
struct ChunkEntry {
  std::string line{};  // line of the cache: first the one read, then the one to write
  SampleCheckState state = SampleCheckState::kNotChecked;
  bool had_cache_line = false;  // with a valid sample; set only if the record was read
  CachedSample sample{};
  std::vector<io::Notice> notices{};  // of a checked sample
  SampleProblem problem{};            // of a bad sample
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
        indices_(select_sample_indices(records.size(), settings.max_samples)) {
    sample_index_.is_complete = std::ssize(indices_) == records.size();
    sample_index_.shapes = SampleShapes(records.size());
    sample_index_.ids = TextColumn(records.size());
    sample_index_.tasks = DictionaryTextColumn(records.size());
    if (settings.cache.empty()) return;
    cache_reader_ = SampleIndexCacheReader(settings.cache, settings.processor_key);
    kinds_ = cache_reader_.kinds();
    if (settings.keep_fingerprints)
      sample_index_.fingerprints.content_hashes.resize(static_cast<size_t>(records.size()));
    if (cache_reader_.version_hash() != version_hash_ || cache_reader_.num_samples() != records.size())
      start_cache_writing(0);
  }

  SampleIndex run() {
    auto remaining_indices = std::span<const int64_t>(indices_);
    for (int64_t first = 0; first < records_.size(); first += kSamplesPerChunk) {
      std::vector<ChunkEntry> entries(static_cast<size_t>(std::min(kSamplesPerChunk, records_.size() - first)));
      for (ChunkEntry& entry : entries) entry.line = cache_reader_.next();
      const auto num_chunk_indices =
          std::ranges::lower_bound(remaining_indices, first + std::ssize(entries)) - remaining_indices.begin();
      check_samples(remaining_indices.first(static_cast<size_t>(num_chunk_indices)), first, entries);
      remaining_indices = remaining_indices.subspan(static_cast<size_t>(num_chunk_indices));
      assign_notice_kinds(entries);
      write(entries);
      for (int64_t i = 0; i < std::ssize(entries); ++i) store(first + i, entries[static_cast<size_t>(i)]);
    }
    if (cache_writer_) cache_writer_->commit(kinds_);
    return std::move(sample_index_);
  }

 private:
  /// Returns `max_samples` evenly spaced indices, or all if it is 0.
  static std::vector<int64_t> select_sample_indices(int64_t samples, int64_t max_samples) {
    const int64_t count = max_samples > 0 ? std::min(max_samples, samples) : samples;
    std::vector<int64_t> indices(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) indices[static_cast<size_t>(i)] = i * samples / count;
    return indices;
  }

  void check_samples(std::span<const int64_t> indices, int64_t first, std::vector<ChunkEntry>& entries) const {
    const auto num_checked_before = std::distance(indices_.data(), indices.data());
    std::function<void(int64_t)> on_progress;
    if (settings_.on_progress)
      on_progress = [&](int64_t num_done) { settings_.on_progress(num_checked_before + num_done); };
    const auto check_ith_sample = [&](int64_t i) {
      const int64_t index = indices[static_cast<size_t>(i)];
      check_sample(index, entries[static_cast<size_t>(index - first)]);
    };
    parallel_for(std::ssize(indices), settings_.num_workers, check_ith_sample, on_progress);
  }

  /// Takes the result from the cache if record and files are unchanged; otherwise checks the
  /// sample.
  void check_sample(int64_t index, ChunkEntry& entry) const {
    auto cached_sample = entry.line.empty() ? std::nullopt : parse_cache_line(entry.line, kinds_.size());
    const bool is_record_unchanged =
        cached_sample && version_hash_ != 0 && version_hash_ == cache_reader_.version_hash();
    const auto reuse_cached_sample = [&] {
      entry.sample = std::move(*cached_sample);
      entry.state = SampleCheckState::kUnchanged;
    };
    if (is_record_unchanged && cached_sample->file_state_hash == compute_file_state_hash(cached_sample->files))
      return reuse_cached_sample();
    const io::Record record = records_.at(index);
    entry.had_cache_line = cached_sample.has_value();
    CachedSample current;
    current.id = record.id;
    current.task = record.task;
    if (!settings_.cache.empty()) {
      current.fingerprint = compute_record_fingerprint(record);
      current.files = list_record_files(record);
      current.file_state_hash = compute_file_state_hash(current.files);
      if (cached_sample && is_cached_sample_valid(*cached_sample, current, record)) return reuse_cached_sample();
    }
    try {
      const Sample header_sample = make_header_sample(processor_, record, index);
      current.shape = get_sample_shape(header_sample);
      current.decode_bytes = header_sample.decode_bytes;
      current.shrink_info = header_sample.shrink_info;
      current.num_record_notices = std::ssize(record.notices);
      entry.notices = header_sample.notices;
      entry.state = SampleCheckState::kUpdated;
    } catch (...) {
      entry.problem = to_sample_problem(std::current_exception());
      entry.state = SampleCheckState::kBad;
    }
    entry.sample = std::move(current);
  }

  /// Returns whether the cached sample is still valid for the record.
  bool is_cached_sample_valid(const CachedSample& cached_sample, const CachedSample& current,
                              const io::Record& record) const {
    return cached_sample.fingerprint == current.fingerprint &&
           cached_sample.file_state_hash == current.file_state_hash && cached_sample.id == current.id &&
           cached_sample.task == current.task && has_same_notices(cached_sample, record.notices);
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
  void assign_notice_kinds(std::vector<ChunkEntry>& entries) {
    for (ChunkEntry& entry : entries) {
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
  void write(std::vector<ChunkEntry>& entries) {
    if (settings_.cache.empty() || !settings_.write_cache) return;
    bool has_changes = false;
    for (ChunkEntry& entry : entries) {
      if (entry.state == SampleCheckState::kUnchanged) continue;
      std::string line =
          entry.state == SampleCheckState::kUpdated ? to_cache_line(entry.sample) : to_cache_line(std::nullopt);
      has_changes = has_changes || line != entry.line;
      entry.line = std::move(line);
    }
    if (has_changes && !cache_writer_) start_cache_writing(std::ssize(entries));
    if (!cache_writer_) return;
    for (const ChunkEntry& entry : entries) cache_writer_->add(entry.line);
  }

  /// Starts a new cache file with the lines that were read from the old one, except the last
  /// `num_unused_lines`, which belong to the current chunk.
  void start_cache_writing(int64_t num_unused_lines) {
    if (!settings_.write_cache) return;
    cache_writer_.emplace(settings_.cache, settings_.processor_key, version_hash_, records_.size());
    cache_reader_.copy_lines(*cache_writer_, num_unused_lines);
  }

  /// Moves the result to sample_index_.
  void store(int64_t index, ChunkEntry& entry) {
    if (entry.state == SampleCheckState::kNotChecked) return;
    sample_index_.num_changed_samples += entry.had_cache_line && entry.state != SampleCheckState::kUnchanged ? 1 : 0;
    sample_index_.ids.set(index, entry.sample.id);
    sample_index_.tasks.set(index, entry.sample.task);
    if (entry.state == SampleCheckState::kBad) {
      sample_index_.problems.emplace(index, std::move(entry.problem));
      return;
    }
    count_notices(entry.sample);
    if (settings_.keep_fingerprints && !settings_.cache.empty()) store_fingerprints(index, entry.sample);
    sample_index_.shapes.set(index, entry.sample.shape);
    if (entry.sample.shrink_info) sample_index_.shrink_infos.emplace(index, *entry.sample.shrink_info);
    sample_index_.decode_bytes = std::max(sample_index_.decode_bytes, entry.sample.decode_bytes);
    sample_index_.num_cached_shapes += entry.state == SampleCheckState::kUnchanged ? 1 : 0;
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
  const uint64_t version_hash_;          // of the records; 0: unknown
  const std::vector<int64_t> indices_;   // of the samples to check, ascending
  SampleIndexCacheReader cache_reader_;  // of an earlier call
  NoticeKindTable kinds_;                // kinds of the cache, then new ones
  std::optional<SampleIndexCacheWriter> cache_writer_;
  SampleIndex sample_index_;
};

using MediaKeySet = std::unordered_set<uint64_t>;

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
  VLMTRAIN_CHECK(settings.num_workers >= 1, "{} workers", settings.num_workers);
  return SampleIndexer(records, processor, settings).run();
}

SharedContent find_shared_content(const ContentFingerprints& fingerprints, ContentFingerprints& other_fingerprints) {
  std::ranges::sort(other_fingerprints.content_hashes);
  std::ranges::sort(other_fingerprints.file_hashes);
  SharedContent shared_content;
  std::vector<char> is_shared_sample(fingerprints.content_hashes.size());
  for (size_t i = 0; i < fingerprints.content_hashes.size(); ++i) {
    const uint64_t content = fingerprints.content_hashes[i];
    if (content == 0 || !std::ranges::binary_search(other_fingerprints.content_hashes, content)) continue;
    is_shared_sample[i] = 1;
    shared_content.samples.push_back(static_cast<int64_t>(i));
  }
  for (const auto& [file, index] : fingerprints.file_hashes) {
    const auto match =
        std::ranges::lower_bound(other_fingerprints.file_hashes, file, {}, &std::pair<uint64_t, int64_t>::first);
    const bool is_shared = match != other_fingerprints.file_hashes.end() && match->first == file;
    if (is_shared && is_shared_sample[static_cast<size_t>(index)] == 0)
      shared_content.samples_with_shared_files.push_back(index);
  }
  std::ranges::sort(shared_content.samples_with_shared_files);
  const auto unique_end =
      std::unique(shared_content.samples_with_shared_files.begin(), shared_content.samples_with_shared_files.end());
  shared_content.samples_with_shared_files.erase(unique_end, shared_content.samples_with_shared_files.end());
  return shared_content;
}

std::map<int64_t, SampleProblem> find_undecodable_samples(
    const io::Records& records, const SampleProcessor& processor, const SampleIndex& sample_index,
    const ContentIndex& content_index, size_t dataset, int64_t workers,
    const std::function<void(int64_t num_done, int64_t total)>& on_progress) {
  const auto is_usable = [&](int64_t sample) {
    return sample_index.shapes.is_known(sample) && !sample_index.problems.contains(sample);
  };
  MediaKeySet seen_media_keys, seen_mask_keys;
  // First pass: decode samples that have a medium or mask which no earlier sample has.
  std::vector<int64_t> representative_indices;
  std::vector<char> is_decoded(static_cast<size_t>(records.size()));
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample)) continue;
    bool has_new_media = false;
    for (const uint64_t medium : content_index.get_media_keys(dataset, sample))
      has_new_media = seen_media_keys.insert(medium).second || has_new_media;
    for (const uint64_t mask : content_index.get_mask_keys(dataset, sample))
      has_new_media = seen_mask_keys.insert(mask).second || has_new_media;
    if (has_new_media) representative_indices.push_back(sample);
    is_decoded[static_cast<size_t>(sample)] = has_new_media ? 1 : 0;
  }
  SampleDecoder decoder(records, processor);
  decoder.decode(representative_indices, workers, on_progress);
  if (decoder.problems().empty()) return {};

  // Second pass: any medium of a failed sample may be the cause, so that the other samples with
  // these media are decoded too.
  MediaKeySet suspect_media_keys;
  for (const auto& [sample, problem] : decoder.problems()) {
    const auto& media = content_index.get_media_keys(dataset, sample);
    suspect_media_keys.insert(media.begin(), media.end());
  }
  std::vector<int64_t> samples_with_suspect_media;
  for (int64_t sample = 0; sample < records.size(); ++sample) {
    if (!is_usable(sample) || is_decoded[static_cast<size_t>(sample)] != 0) continue;
    const auto& media = content_index.get_media_keys(dataset, sample);
    const bool is_suspect =
        std::ranges::any_of(media, [&](uint64_t medium) { return suspect_media_keys.contains(medium); });
    if (is_suspect) samples_with_suspect_media.push_back(sample);
  }
  decoder.decode(samples_with_suspect_media, workers, on_progress);
  return std::move(decoder.problems());
}

}  // namespace vlmtrain::data
