#include "vlmtrain/report/marked_chat.h"

namespace vlmtrain::report {

std::string marked_chat(const text::RenderedChat& chat, std::string_view open, std::string_view close,
                        std::string (*escaped)(std::string_view)) {
  std::string marked;
  const auto add = [&](size_t begin, size_t end) {
    const std::string_view piece = std::string_view(chat.text).substr(begin, end - begin);
    marked += escaped == nullptr ? std::string(piece) : escaped(piece);
  };
  size_t shown = 0;
  for (const text::Span& answer : chat.answers) {
    add(shown, answer.begin);
    marked += open;
    add(answer.begin, answer.end);
    marked += close;
    shown = answer.end;
  }
  add(shown, chat.text.size());
  return marked;
}

}  // namespace vlmtrain::report
