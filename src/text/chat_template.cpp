#include "vlmtrain/text/chat_template.h"

#include <utility>

#include "text/chat_table.h"
#include "text/image_marks.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

using Table = ChatTemplate::Table;

/// Writes one conversation.
class Renderer {
 public:
  explicit Renderer(const Table& table) : table_(table) { chat_.text = table.opening; }

  void system(std::string_view text) {
    if (table_.system_place == SystemPlace::kInsideUser) {
      pending_system_ = framed(table_.system, text);
    } else {
      chat_.text += framed(table_.system, text);
    }
  }

  void user(std::string_view text) {
    chat_.text += opening(table_.user, text);
    chat_.text += std::exchange(pending_system_, {});
    chat_.text += replace_marks(text, table_.image_text);
    chat_.text += table_.user.after;
  }

  void assistant(std::string_view text) {
    chat_.text += table_.generation_prompt;
    const size_t begin = chat_.text.size();
    chat_.text.append(table_.answer_begin).append(replace_marks(text, table_.image_text)).append(table_.answer_end);
    chat_.answers.push_back({begin, chat_.text.size()});
    chat_.text += table_.answer_after;
  }

  RenderedChat finish(bool add_generation_prompt) {
    if (add_generation_prompt) chat_.text += table_.generation_prompt;
    return std::move(chat_);
  }

 private:
  static std::string_view opening(const Frame& frame, std::string_view text) {
    return text.starts_with(kImageMark) ? frame.before_image : frame.before;
  }

  std::string framed(const Frame& frame, std::string_view text) const {
    return std::string(opening(frame, text)).append(replace_marks(text, table_.image_text)).append(frame.after);
  }

  const Table& table_;
  RenderedChat chat_;
  std::string pending_system_;
};

std::string arrange_images(const Table& table, std::string_view text) {
  return table.image_place == ImagePlace::kFirst ? move_marks_to_front(text) : drop_breaks_after_opening_marks(text);
}

void write_turn(Renderer& renderer, const Table& table, std::span<const Turn> turns, size_t index) {
  const std::string text = arrange_images(table, turns[index].text);
  const bool is_system = turns[index].role == Role::kSystem;
  const bool has_place =
      table.system_place == SystemPlace::kOwnTurn || (index == 0 && turns.size() > 1 && turns[1].role == Role::kUser);
  if (is_system && !has_place) {
    throw data_error(
        "Turn {} is a system turn, and the chat template {} has a place for one only before a first user "
        "turn; move its text there",
        index, table.name);
  }
  switch (turns[index].role) {
    case Role::kSystem:
      renderer.system(text);
      break;
    case Role::kUser:
      renderer.user(text);
      break;
    case Role::kAssistant:
      renderer.assistant(text);
      break;
  }
}

}  // namespace

const ChatTemplate& ChatTemplate::find(std::string_view name) {
  static const std::vector<ChatTemplate> all = [] {
    std::vector<ChatTemplate> templates;
    for (const Table& table : chat_tables()) templates.push_back(ChatTemplate(table));
    return templates;
  }();
  std::string known;
  for (const ChatTemplate& candidate : all) {
    if (candidate.name() == name) return candidate;
    known.append(known.empty() ? "" : ", ").append(candidate.name());
  }
  throw usage_error("There is no chat template \"{}\"; there are {}", name, known);
}

std::vector<std::string_view> ChatTemplate::names() {
  std::vector<std::string_view> names;
  for (const Table& table : chat_tables()) names.push_back(table.name);
  return names;
}

std::string_view ChatTemplate::name() const {
  return table_->name;
}
std::string_view ChatTemplate::end_of_turn() const {
  return table_->end_of_turn;
}
std::string_view ChatTemplate::image_text() const {
  return table_->image_text;
}

RenderedChat ChatTemplate::render(std::span<const Turn> turns, bool add_generation_prompt) const {
  if (turns.empty()) throw data_error("A conversation has no turns; give it a question and an answer, or drop it");
  Renderer renderer(*table_);
  if (turns.front().role != Role::kSystem && !table_->default_system.empty()) renderer.system(table_->default_system);
  for (size_t i = 0; i < turns.size(); ++i) write_turn(renderer, *table_, turns, i);
  return renderer.finish(add_generation_prompt);
}

}  // namespace vlmtrain::text
