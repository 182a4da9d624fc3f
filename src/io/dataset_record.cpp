#include "io/dataset_record.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "io/content_blocks.h"
#include "io/json_scalar.h"
#include "io/key_refusals.h"
#include "io/media_likeness.h"
#include "io/media_places.h"
#include "io/record_columns.h"
#include "io/record_keys.h"
#include "io/record_masks.h"
#include "io/record_turns.h"
#include "io/record_volumes.h"
#include "io/text_marks.h"
#include "io/white_space.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

std::string id_of(const json& record, const std::string& fallback) {
  const json* id = find_present(record, {"id"});
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

/// What a record lists next to its turns.
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
    const json* system = find_present(value, {"system"});
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
    if (!record.images.empty() || !record.videos.empty()) note_marks_in_texts(record.turns, record.notices);
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
