#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace vlmtrain::data {

/// What tells equal samples of two data sets apart from others without reading them again: hashes of 64 bits of their
/// conversations, with the names or bytes of their media, and of the names of their files. Contents of files that have
/// other names are not compared (ContentIndex does that).
struct ContentPrints {
  std::vector<uint64_t> contents{};                   ///< by index; 0: not usable
  std::vector<std::pair<uint64_t, int64_t>> files{};  ///< hash of a file's name, and the index of a sample with it
};

/// The samples of a data set that another one has too, by index, ascending.
struct SharedContent {
  std::vector<int64_t> samples{};     ///< the same conversation about the same media
  std::vector<int64_t> with_files{};  ///< others, with a file that a sample of the other data set has too
};

/// Takes O(n log n) for n samples and files. `other` comes sorted back.
SharedContent shared_content(const ContentPrints& prints, ContentPrints& other);

}  // namespace vlmtrain::data
