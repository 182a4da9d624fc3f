#include "models/expand_images.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

text::RenderedChat expand_images(const text::RenderedChat& chat, std::string_view image_text,
                                 std::span<const std::string> expansions) {
  text::RenderedChat expanded;
  expanded.answers = chat.answers;
  size_t copied = 0;
  for (const std::string& expansion : expansions) {
    const size_t place = chat.text.find(image_text, copied);
    VLMTRAIN_CHECK(place != std::string::npos, "{} images for fewer places in the text", expansions.size());
    expanded.text.append(chat.text, copied, place - copied).append(expansion);
    copied = place + image_text.size();
    for (size_t i = 0; i < chat.answers.size(); ++i) {
      if (chat.answers[i].begin >= copied) expanded.answers[i].begin += expansion.size() - image_text.size();
      if (chat.answers[i].end >= copied) expanded.answers[i].end += expansion.size() - image_text.size();
    }
  }
  expanded.text.append(chat.text, copied);
  return expanded;
}

}  // namespace vlmtrain::models
