#include "vlmtrain/report/marked_chat.h"

namespace vlmtrain::report {

std::string mark_answers(const text::RenderedChat& chat, std::string_view open, std::string_view close,
                         std::string (*escape)(std::string_view)) {
  std::string text;
  const auto add = [&](size_t begin, size_t end) {
    const std::string_view piece = std::string_view(chat.text).substr(begin, end - begin);
    text += escape == nullptr ? std::string(piece) : escape(piece);
  };
  size_t position = 0;
  for (const text::Span& answer : chat.answers) {
    add(position, answer.begin);
    text += open;
    add(answer.begin, answer.end);
    text += close;
    position = answer.end;
  }
  add(position, chat.text.size());
  return text;
}

}  // namespace vlmtrain::report
