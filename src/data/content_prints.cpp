#include "vlmtrain/data/content_prints.h"

#include <algorithm>

namespace vlmtrain::data {

SharedContent find_shared_content(const ContentFingerprints& fingerprints, ContentFingerprints& other_fingerprints) {
  std::ranges::sort(other_fingerprints.content_hashes);
  std::ranges::sort(other_fingerprints.file_hashes);
  SharedContent shared;
  std::vector<char> is_same(fingerprints.content_hashes.size());
  for (size_t i = 0; i < fingerprints.content_hashes.size(); ++i) {
    const uint64_t content = fingerprints.content_hashes[i];
    if (content == 0 || !std::ranges::binary_search(other_fingerprints.content_hashes, content)) continue;
    is_same[i] = 1;
    shared.samples.push_back(static_cast<int64_t>(i));
  }
  for (const auto& [file, index] : fingerprints.file_hashes) {
    const auto match =
        std::ranges::lower_bound(other_fingerprints.file_hashes, file, {}, &std::pair<uint64_t, int64_t>::first);
    const bool is_shared = match != other_fingerprints.file_hashes.end() && match->first == file;
    if (is_shared && is_same[static_cast<size_t>(index)] == 0) shared.samples_with_shared_files.push_back(index);
  }
  std::ranges::sort(shared.samples_with_shared_files);
  const auto unique_end = std::unique(shared.samples_with_shared_files.begin(), shared.samples_with_shared_files.end());
  shared.samples_with_shared_files.erase(unique_end, shared.samples_with_shared_files.end());
  return shared;
}

}  // namespace vlmtrain::data
