#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace vlmtrain::data {

/// What tells equal samples of two data sets apart from others without reading them again: hashes of 64 bits of their
/// conversations, with the names or bytes of their media, and of the names of their files. Contents of files that have
/// other names are not compared (ContentIndex does that).
struct ContentFingerprints {
  std::vector<uint64_t> content_hashes{};  ///< by index; 0: not usable
  std::vector<std::pair<uint64_t, int64_t>>
      file_hashes{};  ///< hash of a file's name, and the index of a sample with it
};

/// The samples of a data set that another one has too, by index, ascending.
struct SharedContent {
  std::vector<int64_t> samples{};  ///< the same conversation about the same media
  std::vector<int64_t>
      samples_with_shared_files{};  ///< others, with a file that a sample of the other data set has too
};

/// Takes O(n log n) for n samples and files. `other_fingerprints` comes sorted back.
SharedContent find_shared_content(const ContentFingerprints& fingerprints, ContentFingerprints& other_fingerprints);

}  // namespace vlmtrain::data
