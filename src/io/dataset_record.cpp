#include "io/dataset_record.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "io/media_places.h"
#include "io/record_columns.h"
#include "io/record_masks.h"
#include "io/record_volumes.h"
#include "io/white_space.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

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
  if (id != nullptr && id->is_string()) {
    return printable(id->get_ref<const std::string&>());
  }
  return id != nullptr && id->is_number_integer() ? id->dump() : printable(fallback);
}

// VQA-RAD has the answer types "CLOSED" and "CLOSED ", which are one.
std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

/// The first of `keys` that is a string, trimmed; else empty.
std::string word_of(const json& record, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = record.find(key);
    if (found != record.end() && found->is_string()) {
      return printable(trimmed(found->get_ref<const std::string&>()));
    }
  }
  return {};
}

void refuse_audio(const json& record) {
  for (const char* key : {"audio", "audios"}) {
    const json* found = find_first(record, {key});
    if (found != nullptr && !found->empty()) {
      throw data_error("has the field \"{}\", which is not supported yet: remove it or the record", key);
    }
  }
}

const json& turns_of(const json& record) {
  for (const char* key : {"messages", "conversations"}) {
    const auto found = record.find(key);
    if (found == record.end() || found->is_null()) {
      continue;
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

Role role_of(const json& turn, size_t number) {
  constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles{{{"human", Role::kUser},
                                                                     {"user", Role::kUser},
                                                                     {"gpt", Role::kAssistant},
                                                                     {"assistant", Role::kAssistant},
                                                                     {"system", Role::kSystem}}};
  const json* name = find_first(turn, {"from", "role"});
  if (name == nullptr || !name->is_string()) {
    throw data_error("turn {} does not say whose it is: \"from\" or \"role\" is missing", number);
  }
  for (const auto& [word, role] : kRoles) {
    if (name->get_ref<const std::string&>() == word) {
      return role;
    }
  }
  throw data_error("turn {} has the unknown role \"{}\": human, user, gpt, assistant and system are known", number,
                   excerpt(name->get_ref<const std::string&>()));
}

std::optional<std::string> scalar_text(const json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  return value.is_number() || value.is_boolean() ? std::optional(value.dump()) : std::nullopt;
}

const char* article(const MediaKind& kind) {
  return kind.word == kImages.word ? "an" : "a";
}

/// The places of all that is not text.
struct Places {
  MediaPlaces images{kImages};
  MediaPlaces videos{kVideos};

  void add_marks_in(std::string_view text) {
    images.add_marks_in(text);
    videos.add_marks_in(text);
  }
};

// What a content block of `kind` brings along, if anything.
std::optional<Medium> own_medium(const json& block, size_t number, const MediaKind& kind) {
  const std::string url_key = fmt::format("{}_url", kind.word);
  const json* file = find_first(block, {url_key.c_str(), kind.keys[0], "path", "url"});
  if (file != nullptr && file->is_object() && find_first(*file, {"bytes"}) == nullptr) {
    file = find_first(*file, {"url", "path"});
    if (file == nullptr) {
      throw data_error("turn {}: {} {} block has an object without \"url\"", number, article(kind), kind.word);
    }
  }
  if (file == nullptr) {
    return std::nullopt;
  }
  if (file->is_array()) {
    return medium_of_frames(*file, fmt::format("turn {}: {} {} block", number, article(kind), kind.word), kind);
  }
  auto medium = medium_of(*file);
  if (!medium) {
    throw data_error("turn {}: {} {} block's {} is not a path", number, article(kind), kind.word, kind.word);
  }
  return medium;
}

std::string block_text(const json& block, size_t number, Places& places) {
  const auto type = block.is_object() ? block.find("type") : block.end();
  if (!block.is_object() || type == block.end() || !type->is_string()) {
    throw data_error("turn {}: a content block has no \"type\"", number);
  }
  const auto& name = type->get_ref<const std::string&>();
  if (name == "image" || name == "image_url") {
    places.images.add(own_medium(block, number, kImages));
    return std::string(kImageMark);
  }
  if (name == "volume") {
    auto volume = own_medium(block, number, kVolumes);
    if (volume) volume->is_volume = true;
    places.images.add(std::move(volume));
    return std::string(kImageMark);
  }
  if (name == "video" || name == "video_url") {
    places.videos.add(own_medium(block, number, kVideos));
    return std::string(kVideoMark);
  }
  if (name != "text") {
    throw data_error(
        "turn {}: a content block of type \"{}\" is not supported: text, image, image_url, video, video_url and volume "
        "are",
        number, excerpt(name));
  }
  const json* value = find_first(block, {"text"});
  const std::optional<std::string> text = value == nullptr ? std::nullopt : scalar_text(*value);
  if (!text) {
    throw data_error("turn {}: a text block has no \"text\"", number);
  }
  places.add_marks_in(*text);
  return *text;
}

std::string text_of(const json& turn, size_t number, Places& places) {
  const json* content = find_first(turn, {"value", "content"});
  if (content == nullptr) {
    throw data_error("turn {} is empty", number);
  }
  if (content->is_array()) {
    std::string text;
    for (const json& block : *content) {
      text += block_text(block, number, places);
    }
    return text;
  }
  std::optional<std::string> text = scalar_text(*content);
  if (!text) {
    throw data_error("turn {}: its text is neither a string nor a list of content blocks", number);
  }
  places.add_marks_in(*text);
  return *std::move(text);
}

void check_turn(const Turn& turn, size_t number) {
  if (turn.text.find_first_not_of(kWhiteSpace) == std::string::npos) {
    throw data_error("turn {} is empty", number);
  }
  for (const MediaKind& kind : {kImages, kVideos}) {
    if (turn.role == Role::kAssistant && turn.text.find(kind.mark) != std::string::npos) {
      throw data_error("turn {} is the assistant's and has {} {}: a model cannot be trained to answer with one", number,
                       article(kind), kind.word);
    }
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
void take_image_marks_for_videos(std::vector<Turn>& turns, Places& places, size_t videos) {
  for (Turn& turn : turns) {
    for (size_t at = turn.text.find(kImageMark); at != std::string::npos; at = turn.text.find(kImageMark, at)) {
      turn.text.replace(at, kImageMark.size(), kVideoMark);
    }
  }
  places = Places{};
  for (size_t i = 0; i < videos; ++i) {
    places.videos.add(std::nullopt);
  }
}

void place_media(const json& value, const MediaRoot& root, Places& places, Record& record) {
  const std::vector<Medium> images = images_and_volumes(value, places.images);
  const std::vector<Medium> videos = listed_media(value, kVideos);
  const bool images_are_videos = images.empty() && !videos.empty() && places.videos.empty() &&
                                 places.images.waiting() == videos.size() && places.images.size() == videos.size();
  if (images_are_videos) {
    take_image_marks_for_videos(record.turns, places, videos.size());
  }
  std::string opening;
  record.images = places.images.fill(images, root, opening);
  record.videos = places.videos.fill(videos, root, opening);
  name_volumes(value, record);
  if (!opening.empty()) {
    const auto user = std::ranges::find(record.turns, Role::kUser, &Turn::role);
    VLMTRAIN_CHECK(user != record.turns.end(), "a conversation without a user");
    user->text = opening + "\n" + user->text;
  }
}

void read_turns(const json& value, const MediaRoot& root, Record& record) {
  refuse_audio(value);
  const json& turns = turns_of(value);
  Places places;
  const json* system = find_first(value, {"system"});
  if (system != nullptr && system->is_string() && !system->get_ref<const std::string&>().empty()) {
    record.turns.push_back({Role::kSystem, text_of({{"value", *system}}, 1, places)});
  }
  for (const json& turn : turns) {
    const size_t number = record.turns.size() + 1;
    if (!turn.is_object()) {
      throw data_error("turn {} is not a JSON object", number);
    }
    const Role role = role_of(turn, number);
    record.turns.push_back({role, text_of(turn, number, places)});
    check_turn(record.turns.back(), number);
  }
  check_alternation(record.turns);
  place_media(value, root, places, record);
  try {
    record.masks = masks_of(value, root, record.images.size());
  } catch (const UserError& error) {
    record.mask_problem = error.what();
  }
}

}  // namespace

RecordReader::RecordReader(const RecordSettings& settings, const std::filesystem::path& folder)
    : root_{.folder = settings.image_root.value_or(folder), .is_left_never = settings.stays_in_image_root},
      columns_(settings.columns) {}

Record RecordReader::read(json value, const std::string& fallback_id) const {
  Record record;
  if (!value.is_object()) {
    record.id = printable(fallback_id);
    record.problem = "is not a JSON object";
    return record;
  }
  try {
    rename_columns(value, columns_);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  record.id = id_of(value, fallback_id);
  record.task = word_of(value, {"task", "task_type", "kind", "category", "answer_type"});
  record.answer_type = word_of(value, {"answer_type"});
  if (!record.problem.empty()) return record;
  try {
    make_messages(value);
    read_turns(value, root_, record);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  return record;
}

uint64_t RecordReader::stamp() const {
  ContentHash hash;
  hash.add(root_.folder.native()).add(root_.is_left_never ? 1U : 0U);
  for (const auto& [name, theirs] : columns_) hash.add(name).add(theirs);
  return hash.value();
}

}  // namespace vlmtrain::io
