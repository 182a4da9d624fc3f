#include "io/dataset_record.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "io/content_blocks.h"
#include "io/media_likeness.h"
#include "io/media_places.h"
#include "io/record_columns.h"
#include "io/record_keys.h"
#include "io/record_masks.h"
#include "io/record_volumes.h"
#include "io/white_space.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/marks.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

// The value of the first of `keys` that is there and not null.
const json* find_first(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null()) {
      return &*found;
    }
  }
  return nullptr;
}

std::string id_of(const json& record, const std::string& fallback) {
  const json* id = find_first(record, {"id"});
  if (id == nullptr || is_blank(*id)) return printable(fallback);
  if (id->is_string()) return printable(id->get_ref<const std::string&>());
  return id->is_number_integer() ? id->dump() : value_excerpt(*id);
}

// VQA-RAD has the answer types "CLOSED" and "CLOSED ", which are one.
std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

std::string word_of(const json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end() || !found->is_string()) return {};
  return printable(trimmed(found->get_ref<const std::string&>()));
}

/// The first of the keys that names the task; "task" and "task_type" may be numbers.
std::string task_of(const json& record) {
  for (const char* key : {"task", "task_type", "kind", "category", "answer_type"}) {
    const auto found = record.find(key);
    if (found == record.end()) continue;
    if (found->is_string()) return word_of(record, key);
    if (key[0] == 't' && found->is_number()) return found->dump();
  }
  return {};
}

const json& turns_of(const json& record) {
  for (const char* key : {"messages", "conversations"}) {
    const auto found = record.find(key);
    if (found == record.end() || found->is_null()) {
      continue;
    }
    if (found->is_array() && found->empty() && key == std::string_view("messages") &&
        find_first(record, {"conversations"}) != nullptr) {
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
  const json* from = find_first(turn, {"from"});
  const json* role = find_first(turn, {"role"});
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
  const json* const value = find_first(turn, {"value"});
  const json* const content = find_first(turn, {"content"});
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

/// A text, a number, a list of texts, which are lines, or a list of content blocks.
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

// LLaVA's own data of videos marks each with <image>.
void take_image_marks_for_videos(std::vector<Turn>& turns, ConversationPlaces& places, size_t videos) {
  for (Turn& turn : turns) {
    for (size_t at = turn.text.find(kImageMark); at != std::string::npos; at = turn.text.find(kImageMark, at)) {
      turn.text.replace(at, kImageMark.size(), kVideoMark);
    }
  }
  places = ConversationPlaces{};
  for (size_t i = 0; i < videos; ++i) {
    places.videos.add(std::nullopt);
  }
}

/// What a record lists beside its turns.
struct ListedMedia {
  std::vector<Medium> images;  ///< or volumes
  std::vector<Medium> videos;
};

ListedMedia listed_media_of(const json& value, MediaPlaces& images) {
  ListedMedia listed{.images = images_and_volumes(value, images), .videos = listed_media(value, kVideos)};
  set_frame_rates(value, listed.videos);
  return listed;
}

void place_media(ListedMedia& listed, const MediaRoot& root, ConversationPlaces& places, RecordKeys& keys,
                 Record& record) {
  auto& [images, videos] = listed;
  const bool images_are_videos = images.empty() && !videos.empty() && places.videos.empty() &&
                                 places.images.waiting() == videos.size() && places.images.size() == videos.size();
  if (images_are_videos) take_image_marks_for_videos(record.turns, places, videos.size());
  const bool are_words = places.images.settle(images, record.turns);
  if (places.videos.settle(videos, record.turns) || are_words) {
    const auto with_words = [](const Turn& turn) { return !turn.literal_marks.empty(); };
    keys.add_notice("a mark such as <image> in the text of a record without media, read as text",
                    excerpt(std::ranges::find_if(record.turns, with_words)->text));
  }
  refuse_marks_of_answers(record.turns);
  std::string opening;
  record.images = places.images.fill(images, root, opening);
  record.videos = places.videos.fill(videos, root, opening);
  if (!opening.empty()) {
    const auto user = std::ranges::find(record.turns, Role::kUser, &Turn::role);
    VLMTRAIN_CHECK(user != record.turns.end(), "a conversation without a user");
    opening += "\n";
    user->text.insert(0, opening);
    for (size_t& mark : user->literal_marks) mark += opening.size();
  }
}

/// By its keys alone.
ReadRecord media_listed_in(const json& value, const ConversationPlaces& places) {
  const auto has_any = [&](const MediaKind& kind) {
    return std::ranges::any_of(kind.keys, [&](const char* key) {
      const auto found = value.find(key);
      return found != value.end() && !is_blank(*found);
    });
  };
  return {.has_images = has_any(kImages) || has_any(kVolumes) || places.images.has_own(),
          .has_videos = has_any(kVideos) || places.videos.has_own()};
}

void read_turns(json& value, const MediaRoot& root, RecordKeys& keys, Record& record) {
  ConversationPlaces places;
  ListedMedia listed;
  ReadRecord read;
  try {
    make_messages(value);
    const json& turns = turns_of(value);
    const json* system = find_first(value, {"system"});
    if (system != nullptr && !is_blank(*system)) {
      record.turns.push_back({Role::kSystem, read_system(*system, places, keys)});
    }
    for (const json& turn : turns) read_turn(turn, places, keys, record.turns);
    listed = listed_media_of(value, places.images);
    read = {.has_images = !listed.images.empty() || places.images.has_own(),
            .has_videos = !listed.videos.empty() || places.videos.has_own(),
            .has_frames = std::ranges::any_of(listed.videos, takes_frame_rate),
            .turns = record.turns};
    keys.check_record(value, turns, read);
  } catch (const UserError&) {
    keys.check_media_of_record(value, media_listed_in(value, places));  // which may be the cause
    throw;
  }
  check_alternation(record.turns);
  place_media(listed, root, places, keys, record);
  name_volumes(value, record);
  try {
    record.masks = masks_of(value, root, record.images.size());
  } catch (const UserError& error) {
    record.mask_problem = error.what();
  }
}

/// Of a value that is no object.
std::string problem_of_other_value(const json& value) {
  if (!value.is_array() || value.empty() || !value.front().is_object()) return "is not a JSON object";
  const json& first = value.front();
  if (first.contains("role") || first.contains("from")) {
    return "is a list of turns, not a JSON object; write {\"messages\": [...]}";
  }
  return "is a list of records, not a JSON object; write the records one after the other, without the inner brackets";
}

}  // namespace

RecordReader::RecordReader(const RecordSettings& settings, const std::filesystem::path& folder)
    : root_{.folder = settings.image_root.value_or(folder), .is_left_never = settings.stays_in_image_root},
      columns_(settings.columns),
      ignore_keys_(settings.ignore_keys) {}

Record RecordReader::read(json value, const std::string& fallback_id) const {
  Record record;
  if (!value.is_object()) {
    record.id = printable(fallback_id);
    record.problem = problem_of_other_value(value);
    return record;
  }
  try {
    if (!ignore_keys_.empty()) remove_ignored_keys(value, ignore_keys_, columns_);
    rename_columns(value, columns_);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  record.id = id_of(value, fallback_id);
  record.task = task_of(value);
  record.answer_type = word_of(value, "answer_type");
  if (!record.problem.empty()) return record;
  try {
    RecordKeys keys(columns_, record.notices);
    read_turns(value, root_, keys, record);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  return record;
}

uint64_t RecordReader::stamp() const {
  constexpr uint64_t kReading = 2;  // changes where records are read otherwise
  ContentHash hash;
  hash.add(kReading).add(root_.folder.native()).add(root_.is_left_never ? 1U : 0U);
  for (const auto& [name, theirs] : columns_) hash.add(name).add(theirs);
  hash.add(ignore_keys_.size());
  for (const std::string& key : ignore_keys_) hash.add(key);
  return hash.value();
}

}  // namespace vlmtrain::io
