#include "vlmtrain/data/content_prints.h"

#include <algorithm>

namespace vlmtrain::data {

SharedContent shared_content(const ContentPrints& prints, ContentPrints& other) {
  std::ranges::sort(other.contents);
  std::ranges::sort(other.files);
  SharedContent shared;
  std::vector<char> is_same(prints.contents.size());
  for (size_t i = 0; i < prints.contents.size(); ++i) {
    const uint64_t content = prints.contents[i];
    if (content == 0 || !std::ranges::binary_search(other.contents, content)) continue;
    is_same[i] = 1;
    shared.samples.push_back(static_cast<int64_t>(i));
  }
  for (const auto& [file, index] : prints.files) {
    const auto found = std::ranges::lower_bound(other.files, file, {}, &std::pair<uint64_t, int64_t>::first);
    const bool is_shared = found != other.files.end() && found->first == file;
    if (is_shared && is_same[static_cast<size_t>(index)] == 0) shared.with_files.push_back(index);
  }
  std::ranges::sort(shared.with_files);
  const auto unique_end = std::unique(shared.with_files.begin(), shared.with_files.end());
  shared.with_files.erase(unique_end, shared.with_files.end());
  return shared;
}

}  // namespace vlmtrain::data
