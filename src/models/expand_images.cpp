#include "models/expand_images.h"

#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

text::RenderedChat expand_images(const text::RenderedChat& chat, std::span<const Expansion> expansions) {
  text::RenderedChat expanded;
  expanded.answers = chat.answers;
  size_t copied = 0;
  for (const auto& [mark, expansion] : expansions) {
    const size_t place = chat.text.find(mark, copied);
    VLMTRAIN_CHECK(place != std::string::npos, "{} images for fewer places in the text", expansions.size());
    expanded.text.append(chat.text, copied, place - copied).append(expansion);
    copied = place + mark.size();
    for (size_t i = 0; i < chat.answers.size(); ++i) {
      if (chat.answers[i].begin >= copied) expanded.answers[i].begin += expansion.size() - mark.size();
      if (chat.answers[i].end >= copied) expanded.answers[i].end += expansion.size() - mark.size();
    }
  }
  expanded.text.append(chat.text, copied);
  return expanded;
}

text::RenderedChat expand_images(const text::RenderedChat& chat, std::string_view image_text,
                                 std::span<const std::string> expansions) {
  std::vector<Expansion> marked;
  for (const std::string& expansion : expansions) marked.push_back({image_text, expansion});
  return expand_images(chat, marked);
}

}  // namespace vlmtrain::models
