#include "io/record_turns.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "io/json_scalar.h"
#include "io/key_refusals.h"
#include "io/media_likeness.h"
#include "io/record_volumes.h"
#include "io/white_space.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/marks.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

std::optional<Role> known_role(const json& name) {
  constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles{{{"human", Role::kUser},
                                                                     {"user", Role::kUser},
                                                                     {"gpt", Role::kAssistant},
                                                                     {"assistant", Role::kAssistant},
                                                                     {"system", Role::kSystem}}};
  if (!name.is_string()) return std::nullopt;
  const auto* found =
      std::ranges::find(kRoles, name.get_ref<const std::string&>(), &std::pair<std::string_view, Role>::first);
  return found == kRoles.end() ? std::nullopt : std::optional(found->second);
}

bool is_role_of_tools(std::string_view role) {
  constexpr std::array kRoles = std::to_array<std::string_view>(
      {"tool", "function", "observation", "ipython", "function_call", "tool_call", "tool_response", "tool_result"});
  return std::ranges::find(kRoles, role) != kRoles.end();
}

Role role_of(const json& turn, size_t number, RecordKeys& keys) {
  const json* from = find_present(turn, {"from"});
  const json* role = find_present(turn, {"role"});
  const json* name = from != nullptr ? from : role;
  if (name == nullptr || !name->is_string()) {
    throw data_error("turn {} does not say whose it is: \"from\" or \"role\" is missing", number);
  }
  const auto found = known_role(*name);
  const auto& word = name->get_ref<const std::string&>();
  if (!found && is_role_of_tools(word)) {
    throw data_error("turn {} has the role \"{}\", and tools are not supported yet; remove the record", number, word);
  }
  if (!found) {
    throw data_error("turn {} has the unknown role \"{}\": human, user, gpt, assistant and system are known", number,
                     excerpt(word));
  }
  if (from == nullptr || role == nullptr || known_role(*role) == found) return *found;
  if (known_role(*role)) {
    throw data_error("turn {} is from \"{}\" and has the role \"{}\"; keep one, or set data.ignore_keys=[role]", number,
                     word, value_excerpt(*role));
  }
  keys.add_notice("key \"role\" of a turn", value_excerpt(*role));
  return *found;
}

const char* article(const MediaKind& kind) {
  return kind.word == kImages.word ? "an" : "a";
}

/// The content of a turn, from whichever of its two keys has any.
const json& content_of(const json& turn, size_t number) {
  const json* const value = find_present(turn, {"value"});
  const json* const content = find_present(turn, {"content"});
  if (value == nullptr && content == nullptr) throw data_error("turn {} is empty", number);
  if (value == nullptr || content == nullptr) return value == nullptr ? *content : *value;
  if (is_blank(*value)) return *content;
  if (!is_blank(*content) && *value != *content) {
    throw data_error(
        "turn {} has both \"value\" and \"content\", which differ; keep one, or set data.ignore_keys=[content]",
        number);
  }
  return *value;
}

/// Puts the media that a turn itself names at its marks, or before its text.
void read_media_of_turn(const json& json_turn, size_t index, std::pair<size_t, size_t> first_places,
                        ConversationPlaces& places, std::string& text) {
  std::string marks;
  const auto give = [&](const MediaKind& kind, MediaPlaces& kind_places, size_t first, std::vector<Medium> own) {
    for (size_t i = kind_places.give(std::move(own), first, index); i > 0; --i) marks += kind.mark;
  };
  give(kImages, places.images, first_places.first, listed_images_and_volumes(json_turn));
  std::vector<Medium> videos = listed_media(json_turn, kVideos);
  set_frame_rates(json_turn, videos);
  give(kVideos, places.videos, first_places.second, std::move(videos));
  if (marks.empty()) return;
  marks += "\n";
  places.shift_marks(index, marks.size());
  text.insert(0, marks);
}

}  // namespace

const json& turns_of(const json& record) {
  for (const char* key : {"messages", "conversations"}) {
    const auto found = record.find(key);
    if (found == record.end() || found->is_null()) {
      continue;
    }
    if (found->is_array() && found->empty() && key == std::string_view("messages") &&
        find_present(record, {"conversations"}) != nullptr) {
      continue;  // a column that other rows of the table have
    }
    if (!found->is_array()) {
      throw data_error("its \"{}\" is not a list of turns", key);
    }
    if (found->empty()) {
      throw data_error("its \"{}\" is empty: a question and its answer are wanted", key);
    }
    return *found;
  }
  throw data_error(
      "has no \"conversations\" and no \"messages\", nor a \"question\" and its \"answer\" or a \"caption\"; "
      "data.columns tells what it calls them");
}

void read_turn(const json& value, ConversationPlaces& places, RecordKeys& keys, std::vector<Turn>& turns) {
  const size_t number = turns.size() + 1;
  if (!value.is_object()) throw data_error("turn {} is not a JSON object", number);
  const Role role = role_of(value, number, keys);
  const TurnToRead turn{.index = turns.size(), .is_answer = role == Role::kAssistant};
  const bool has_media = keys.check_turn(value, number, turn.is_answer);
  const std::pair first_places{places.images.size(), places.videos.size()};
  std::string text = read_content(content_of(value, number), turn, places, keys);
  if (has_media) read_media_of_turn(value, turn.index, first_places, places, text);
  turns.push_back({role, std::move(text)});
  if (turns.back().text.find_first_not_of(kWhiteSpace) == std::string::npos) {
    throw data_error("turn {} is empty", number);
  }
}

std::string read_system(const json& system, ConversationPlaces& places, RecordKeys& keys) {
  const TurnToRead turn{.index = 0, .is_answer = false};
  const auto is_text = [](const json& entry) { return entry.is_string(); };
  if (!system.is_array() || !std::ranges::all_of(system, is_text)) {
    if (system.is_object())
      throw data_error(
          "its \"system\" is neither a text nor a list of content blocks; write it as text, or set "
          "data.ignore_keys=[system] to train without it");
    return read_content(system, turn, places, keys);
  }
  std::string text;
  for (const json& line : system) {
    if (!text.empty()) text += "\n";
    text += line.get_ref<const std::string&>();
  }
  places.add_marks_in(text, turn.index, 0);
  return text;
}

void refuse_marks_of_answers(const std::vector<Turn>& turns) {
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role != Role::kAssistant) continue;
    const std::vector<Mark> marks = find_marks(turns[i]);
    if (marks.empty()) continue;
    const MediaKind& kind = marks.front().is_video ? kVideos : kImages;
    throw data_error("turn {} is the assistant's and has {} {}: a model cannot be trained to answer with one", i + 1,
                     article(kind), kind.word);
  }
}

void check_alternation(const std::vector<Turn>& turns) {
  const size_t first = turns.front().role == Role::kSystem ? 1 : 0;
  for (size_t i = first; i < turns.size(); ++i) {
    const Role expected = (i - first) % 2 == 0 ? Role::kUser : Role::kAssistant;
    if (turns[i].role != expected) {
      throw data_error("turn {} should be the {}'s: after an optional system turn, user and assistant alternate", i + 1,
                       expected == Role::kUser ? "user" : "assistant");
    }
  }
  if (turns.size() < first + 2) {
    throw data_error("has no turn of the assistant, so there is nothing to learn");
  }
}

}  // namespace vlmtrain::io
