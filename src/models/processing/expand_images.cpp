#include "models/processing/expand_images.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

text::RenderedChat expand_images(const text::RenderedChat& chat, std::span<const std::string> expansions) {
  VLMTRAIN_CHECK(expansions.size() <= chat.media.size(), "{} images for {} places in the text", expansions.size(),
                 chat.media.size());
  text::RenderedChat expanded;
  expanded.answers = chat.answers;
  size_t copied = 0;
  for (size_t medium = 0; medium < expansions.size(); ++medium) {
    const auto& [span, is_video] = chat.media[medium];
    const std::string& expansion = expansions[medium];
    expanded.text.append(chat.text, copied, span.begin - copied);
    const size_t begin = expanded.text.size();
    expanded.text += expansion;
    expanded.media.push_back({{begin, expanded.text.size()}, is_video});
    copied = span.end;
    const size_t length = span.end - span.begin;
    for (size_t i = 0; i < chat.answers.size(); ++i) {
      if (chat.answers[i].begin >= copied) expanded.answers[i].begin += expansion.size() - length;
      if (chat.answers[i].end >= copied) expanded.answers[i].end += expansion.size() - length;
    }
  }
  expanded.text.append(chat.text, copied);
  return expanded;
}

}  // namespace vlmtrain::models
