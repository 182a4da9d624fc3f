#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/index/content_index.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// 64-bit hashes of a data set's samples for finding samples that another data set also has,
/// without reading either again. Files are identified by name; ContentIndex compares their
/// contents.
struct ContentFingerprints {
  /// By sample index, the hash of the conversation with the names or bytes of its media; 0 for
  /// unusable samples.
  std::vector<uint64_t> content_hashes{};
  /// Pairs (hash of a file name, index of a sample that names the file).
  std::vector<std::pair<uint64_t, int64_t>> file_hashes{};
};

/// The samples of a data set that another data set also has, as ascending indices.
struct SharedContent {
  std::vector<int64_t> samples{};                    ///< equal conversation and media names
  std::vector<int64_t> samples_with_shared_files{};  ///< other samples that name a file of the other data set
};

/// Returns the content of a data set that another data set also has. Sorts `other_fingerprints`.
/// Takes O(n log n) for n samples and files.
SharedContent find_shared_content(const ContentFingerprints& fingerprints, ContentFingerprints& other_fingerprints);

/// The properties of a data set's samples that are known without decoding media. Takes about 50
/// bytes for each sample.
struct SampleIndex {
  SampleShapes shapes{};                         ///< by sample index; unknown for bad and unchecked samples
  TextColumn ids{};                              ///< by index; of checked samples
  DictionaryTextColumn tasks{};                  ///< io::Record::task by index; of checked samples
  std::map<int64_t, SampleProblem> problems{};   ///< of the bad samples, by index
  std::map<int64_t, ShrinkInfo> shrink_infos{};  ///< of samples whose media are shrunk, by index
  NoticeCounts notices{};                        ///< of the usable samples
  ContentFingerprints fingerprints{};            ///< only with SampleIndexSettings::keep_fingerprints
  int64_t decode_bytes = 0;                      ///< maximum of Sample::decode_bytes
  int64_t num_cached_shapes = 0;                 ///< taken from the cache
  int64_t num_changed_samples = 0;               ///< samples whose record or files differ from the cache
  bool is_complete = false;                      ///< whether all samples were checked

  int64_t num_usable_samples() const { return shapes.size() - std::ssize(problems); }
};

/// The settings of index_samples().
struct SampleIndexSettings {
  int64_t num_workers = 1;  ///< threads, >= 1
  /// Maximum number of samples to check, evenly spaced over the data set; 0 for all.
  int64_t max_samples = 0;
  /// File that keeps the shapes between calls; empty for none. If io::Records::version_hash() is
  /// unchanged, no record is read. A sample is checked again if its record changed, if the size or
  /// the times of one of its files changed, or if it was bad, since a missing file may have been
  /// restored. A file that is damaged or has another program version or processor_key is ignored.
  std::filesystem::path cache{};
  bool write_cache = true;         ///< false: only read the cache
  std::string processor_key{};     ///< identifies the settings that the samples depend on, besides the records
  bool keep_fingerprints = false;  ///< fill SampleIndex::fingerprints; has no effect without a cache
  /// Called on the caller's thread from time to time with the number of checked samples, if set. An
  /// exception ends index_samples(), which rethrows it.
  std::function<void(int64_t num_done)> on_progress{};
};

/// Checks samples with make_header_sample(), which tokenizes the texts and reads the headers of the
/// media. A sample is bad if it throws a UserError with kBadData; other exceptions are rethrown.
SampleIndex index_samples(const io::Records& records, const SampleProcessor& processor,
                          const SampleIndexSettings& settings);

/// Returns the usable samples of `sample_index` whose pixels cannot be decoded, with their problems
/// by index. Decodes each image, video and mask of the data set once, in as few samples as
/// possible, and then the other samples that share media with a failed one. `dataset` is the number
/// of the data set in `content_index`. Each of the `workers` threads holds one sample in memory.
/// Calls `on_progress`, if set, from time to time on the caller's thread; `total` is the number of
/// samples to decode.
std::map<int64_t, SampleProblem> find_undecodable_samples(
    const io::Records& records, const SampleProcessor& processor, const SampleIndex& sample_index,
    const ContentIndex& content_index, size_t dataset, int64_t workers,
    const std::function<void(int64_t num_done, int64_t total)>& on_progress = {});

}  // namespace vlmtrain::data
