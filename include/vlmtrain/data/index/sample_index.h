#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/text_column.h"
#include "vlmtrain/data/index/bad_samples.h"
#include "vlmtrain/data/index/content_index.h"
#include "vlmtrain/data/sample/notices.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// 64-bit hashes of a data set's samples, for finding samples shared with another data set without
/// reading either again. Files are identified by name; ContentIndex compares their contents.
struct ContentFingerprints {
  /// Hash of the conversation with the names or bytes of its media, by index; 0 for unusable
  /// samples.
  std::vector<uint64_t> content_hashes{};
  /// Hash of a file name, and the index of a sample that names the file.
  std::vector<std::pair<uint64_t, int64_t>> file_hashes{};
};

/// The samples of a data set that another data set also has, as ascending indices.
struct SharedContent {
  std::vector<int64_t> samples{};                    ///< with the same conversation and media
  std::vector<int64_t> samples_with_shared_files{};  ///< other samples, with a file of a sample of the other set
};

/// Compares two data sets. Sorts `other_fingerprints`. Takes O(n log n) for n samples and files.
SharedContent find_shared_content(const ContentFingerprints& fingerprints, ContentFingerprints& other_fingerprints);

/// The properties of a data set's samples that are known without decoding media. Takes some 50
/// bytes for each sample.
struct SampleIndex {
  SampleShapes shapes{};                        ///< by index; unknown for bad and unchecked samples
  TextColumn ids{};                             ///< by index; of checked samples
  DictionaryTextColumn tasks{};                 ///< io::Record::task by index; of checked samples
  std::map<int64_t, SampleProblem> problems{};  ///< of the bad samples, by index
  std::map<int64_t, ShrinkInfo> shrunk{};       ///< of samples whose media are shrunk, by index
  NoticeCounts notices{};                       ///< of the usable samples
  ContentFingerprints fingerprints{};           ///< only with SampleIndexSettings::keep_fingerprints
  int64_t decode_bytes = 0;                     ///< the maximum of Sample::decode_bytes
  int64_t num_from_cache = 0;                   ///< shapes that came from the cache
  int64_t num_changed = 0;                      ///< samples whose record or files differ from the cache
  bool is_complete = false;                     ///< whether all samples were checked

  int64_t num_usable() const { return shapes.size() - std::ssize(problems); }
};

/// The settings of index_samples().
struct SampleIndexSettings {
  int64_t workers = 1;  ///< threads, >= 1
  /// Check only this many samples, spread over the data set; 0: all.
  int64_t max_samples = 0;
  /// File that keeps the shapes from one call to the next; empty: no file. If io::Records::stamp()
  /// is unchanged, no record is read. A sample is checked again if its record changed, if the size
  /// or the times of one of its files changed, or if it was bad, since a missing file may be back.
  /// A damaged file, or one of another program version or `processor`, is ignored.
  std::filesystem::path cache{};
  bool write_cache = true;         ///< false: read only
  std::string processor{};         ///< identifies everything else that the samples depend on
  bool keep_fingerprints = false;  ///< fill SampleIndex::fingerprints; only with a cache
  /// Called on the caller's thread from time to time with the number of checked samples. An
  /// exception ends the call and is passed on.
  std::function<void(int64_t num_done)> on_progress{};
};

/// Checks samples with make_header_sample(): tokenizes the texts and reads the headers of the
/// media. A sample is bad if that throws a UserError with kBadData; other exceptions are rethrown.
SampleIndex index_samples(const io::Records& records, const SampleProcessor& processor,
                          const SampleIndexSettings& settings);

/// Finds the samples that `sample_index` has as usable and whose pixels cannot be decoded, with
/// their problems. Decodes each image, video and mask of the data set once, in as few samples as
/// possible, then the other samples that share a medium with a failed one. `dataset`: the number of
/// the data set in `content_index`. `workers`: threads, each of which holds one sample.
/// `on_progress`: see SampleIndexSettings, with the number of samples to decode as `total`.
std::map<int64_t, SampleProblem> find_undecodable_samples(
    const io::Records& records, const SampleProcessor& processor, const SampleIndex& sample_index,
    const ContentIndex& content_index, size_t dataset, int64_t workers,
    const std::function<void(int64_t num_done, int64_t total)>& on_progress = {});

}  // namespace vlmtrain::data
