#include "io/record/media/record_media.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/turns.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

namespace {

/// Returns a number of placeholders for messages, such as "2 <image> placeholders".
std::string format_placeholder_count(const MediaKind& kind, size_t count) {
  return pluralize(static_cast<int64_t>(count), fmt::format("{} placeholder", kind.placeholder).c_str());
}

/// Returns a number of media for messages, such as "1 image".
std::string format_media_count(const MediaKind& kind, size_t count) {
  return pluralize(static_cast<int64_t>(count), std::string(kind.name).c_str());
}

/// Returns true if the placeholder at byte `begin` has text before and after it on its line.
bool is_inside_sentence(std::string_view text, size_t begin) {
  const size_t line_start = text.rfind('\n', begin) + 1;  // npos + 1 is 0
  const std::string_view text_before = text.substr(line_start, begin - line_start);
  const std::string_view text_after = text.substr(begin + kImagePlaceholder.size());
  const std::string_view rest_of_line = text_after.substr(0, text_after.find('\n'));
  return text_before.find_first_not_of(kJsonWhitespace) != std::string_view::npos &&
         rest_of_line.find_first_not_of(kJsonWhitespace) != std::string_view::npos;
}

/// Returns the path of a file reference without "file://". Throws data_error for other URLs.
std::string to_local_path(std::string file, size_t number, const MediaKind& kind) {
  // System calls would use only the part of the path before the NUL.
  if (file.find('\0') != std::string::npos) throw data_error("{} {} has a NUL byte in its path", kind.name, number);
  constexpr std::string_view kFileScheme = "file://";
  if (file.starts_with(kFileScheme)) {
    return file.substr(kFileScheme.size());
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (file.starts_with(scheme)) {
      throw data_error("{} {} is an {}... URL, and only files are supported; save the {} and give its path", kind.name,
                       number, scheme, kind.name);
    }
  }
  return file;
}

/// Returns true if `file`, with links resolved, is outside of `root`, and on errors.
bool is_outside_root(const std::filesystem::path& root, const std::filesystem::path& file) {
  std::error_code error;
  auto canonical_root = std::filesystem::weakly_canonical(root.empty() ? "." : root, error);
  if (!canonical_root.has_filename()) canonical_root = canonical_root.parent_path();
  const auto resolved_path = std::filesystem::weakly_canonical(file, error);
  return error || std::ranges::mismatch(canonical_root, resolved_path).in1 != canonical_root.end();
}

/// Converts image placeholders to video placeholders, because LLaVA's data marks videos with
/// <image>. All slots are replaced by slots for the `num_videos` listed videos.
void convert_image_to_video_placeholders(std::vector<Turn>& turns, ConversationMedia& media, size_t num_videos) {
  for (Turn& turn : turns) {
    for (size_t pos = turn.text.find(kImagePlaceholder); pos != std::string::npos;
         pos = turn.text.find(kImagePlaceholder, pos)) {
      turn.text.replace(pos, kImagePlaceholder.size(), kVideoPlaceholder);
    }
  }
  media = ConversationMedia{};
  for (size_t i = 0; i < num_videos; ++i) {
    media.videos.add(std::nullopt);
  }
}

}  // namespace

MediaRef resolve_media_path(const MediaRef& media_ref, size_t number, const ImageRoot& root, const MediaKind& kind) {
  if (!media_ref.frames.empty()) {
    MediaRef video;
    video.frames.reserve(media_ref.frames.size());
    for (const MediaRef& frame : media_ref.frames) {
      video.frames.push_back(resolve_media_path(frame, number, root, kind));
      if (frame.bytes && frame.path.empty()) video.frames.back().path += fmt::format(", frame {}", video.frames.size());
    }
    video.path = video.frames.front().path;
    video.fps = media_ref.fps;
    return video;
  }
  if (media_ref.bytes) {
    MediaRef result = media_ref;
    if (result.path.empty()) result.path = fmt::format("{} {}", kind.name, number);
    return result;
  }
  MediaRef file = media_ref;
  file.path = (root.folder / to_local_path(media_ref.path, number, kind)).string();
  if (root.rejects_outside_paths && is_outside_root(root.folder, file.path)) {
    throw data_error("{} {} is outside the image folder, {}, which {}=refuse forbids: {}", kind.name, number,
                     root.folder.string(), keys::data::kOutsideImageRoot, make_excerpt(file.path));
  }
  return file;
}

void MediaSlots::add_text_placeholders(std::string_view text, size_t turn, size_t begin) {
  for (size_t pos = text.find(media_kind_->placeholder); pos != std::string_view::npos;
       pos = text.find(media_kind_->placeholder, pos + media_kind_->placeholder.size())) {
    slots_.push_back({.media = {}, .placeholder = TextPlaceholder{.turn_index = turn, .begin = begin + pos}});
  }
}

size_t MediaSlots::assign_turn_media(std::vector<MediaRef> media, size_t first, size_t turn) {
  if (media.empty()) return 0;
  std::vector<Slot*> unassigned_slots;
  for (size_t i = first; i < slots_.size(); ++i) {
    if (!slots_[i].media) unassigned_slots.push_back(&slots_[i]);
  }
  if (unassigned_slots.empty()) {
    std::vector<Slot> new_slots;
    new_slots.reserve(media.size());
    for (MediaRef& media_ref : media) new_slots.push_back({.media = std::move(media_ref), .placeholder = {}});
    slots_.insert(slots_.begin() + static_cast<std::ptrdiff_t>(first), new_slots.begin(), new_slots.end());
    return media.size();
  }
  if (unassigned_slots.size() != media.size()) {
    throw data_error("turn {} has {} for its {}; each {} needs one placeholder", turn + 1,
                     format_placeholder_count(*media_kind_, unassigned_slots.size()),
                     format_media_count(*media_kind_, media.size()), media_kind_->name);
  }
  for (size_t i = 0; i < media.size(); ++i) *unassigned_slots[i] = {.media = std::move(media[i]), .placeholder = {}};
  return 0;
}

void MediaSlots::shift_placeholders(size_t turn, size_t bytes) {
  for (Slot& slot : slots_) {
    if (slot.placeholder && slot.placeholder->turn_index == turn) slot.placeholder->begin += bytes;
  }
}

size_t MediaSlots::count_unassigned_slots(const std::vector<Slot>& slots) {
  return static_cast<size_t>(std::ranges::count_if(slots, [](const Slot& slot) { return !slot.media; }));
}

bool MediaSlots::repeats_listed_media(const std::vector<Slot>& slots, const std::vector<MediaRef>& listed_media) {
  return std::ranges::any_of(slots, [](const Slot& slot) { return slot.media.has_value(); }) &&
         std::ranges::equal(slots, listed_media, [](const Slot& slot, const MediaRef& media_ref) {
           return !slot.media || is_same_media(*slot.media, media_ref);
         });
}

void MediaSlots::assign_listed_media(std::vector<MediaRef>& listed_media) {
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].media = std::move(listed_media[i]);
  listed_media.clear();
}

bool MediaSlots::try_mark_literal_placeholders(std::vector<MediaRef>& listed_media, std::vector<Turn>& turns) {
  if (num_unassigned_slots() == listed_media.size()) return false;
  if (repeats_listed_media(slots_, listed_media)) {
    assign_listed_media(listed_media);
    return false;
  }
  std::vector<Slot> inline_slots, literal_slots;
  for (const Slot& slot : slots_) (slot.placeholder ? literal_slots : inline_slots).push_back(slot);
  const auto is_literal = [&](const Slot& slot) {
    return is_inside_sentence(turns[slot.placeholder->turn_index].text, slot.placeholder->begin);
  };
  const bool are_placeholders_literal = inline_slots.empty()
                                            ? listed_media.empty() && std::ranges::all_of(literal_slots, is_literal)
                                            : count_unassigned_slots(inline_slots) == listed_media.size() ||
                                                  repeats_listed_media(inline_slots, listed_media);
  if (!are_placeholders_literal || literal_slots.empty()) return false;
  for (const Slot& literal : literal_slots)
    turns[literal.placeholder->turn_index].literal_placeholder_offsets.push_back(literal.placeholder->begin);
  for (Turn& turn : turns) std::ranges::sort(turn.literal_placeholder_offsets);
  slots_ = std::move(inline_slots);
  if (num_unassigned_slots() != listed_media.size()) assign_listed_media(listed_media);
  return slots_.empty();
}

size_t MediaSlots::num_unassigned_slots() const {
  return count_unassigned_slots(slots_);
}

bool MediaSlots::has_inline_media() const {
  return num_unassigned_slots() < slots_.size();
}

std::vector<MediaRef> MediaSlots::collect_media(const std::vector<MediaRef>& listed_media, const ImageRoot& root,
                                                std::string& leading_placeholders) const {
  const bool has_slots = !slots_.empty();
  if (has_slots && num_unassigned_slots() != listed_media.size()) {
    const std::string hint =
        listed_media.empty()
            ? fmt::format("add the key \"{}\", or remove the placeholder from the text", media_kind_->name)
            : fmt::format("each {} needs one placeholder", media_kind_->name);
    throw data_error("has {} for {}; {}", format_placeholder_count(*media_kind_, num_unassigned_slots()),
                     format_media_count(*media_kind_, listed_media.size()), hint);
  }
  const size_t count = has_slots ? slots_.size() : listed_media.size();
  std::vector<MediaRef> media;
  media.reserve(count);
  auto next_listed_media = listed_media.begin();
  for (size_t i = 0; i < count; ++i) {
    if (!has_slots) leading_placeholders += media_kind_->placeholder;
    const bool is_inline = has_slots && slots_[i].media.has_value();
    media.push_back(resolve_media_path(is_inline ? *slots_[i].media : *next_listed_media++, i + 1, root, *media_kind_));
  }
  return media;
}

void ConversationMedia::add_text_placeholders(std::string_view text, size_t turn, size_t begin) {
  images.add_text_placeholders(text, turn, begin);
  videos.add_text_placeholders(text, turn, begin);
}

void ConversationMedia::shift_placeholders(size_t turn, size_t bytes) {
  images.shift_placeholders(turn, bytes);
  videos.shift_placeholders(turn, bytes);
}

void set_record_media(ConversationMedia& media, ListedMedia& listed_media, const ImageRoot& root, Record& record) {
  auto& [images, videos] = listed_media;
  const bool uses_image_placeholders = images.empty() && !videos.empty() && media.videos.empty() &&
                                       media.images.num_unassigned_slots() == videos.size() &&
                                       media.images.size() == videos.size();
  if (uses_image_placeholders) convert_image_to_video_placeholders(record.turns, media, videos.size());
  const bool are_placeholders_literal = media.images.try_mark_literal_placeholders(images, record.turns);
  if (media.videos.try_mark_literal_placeholders(videos, record.turns) || are_placeholders_literal) {
    const auto has_literal_placeholders = [](const Turn& turn) { return !turn.literal_placeholder_offsets.empty(); };
    add_notice("a placeholder such as <image> in a record without media, read as text",
               make_excerpt(std::ranges::find_if(record.turns, has_literal_placeholders)->text), record.notices);
  }
  check_no_media_in_answers(record.turns);
  std::string leading_placeholders;
  record.images = media.images.collect_media(images, root, leading_placeholders);
  record.videos = media.videos.collect_media(videos, root, leading_placeholders);
  if (!leading_placeholders.empty()) {
    const bool is_document = record.is_document();
    const auto first_turn = std::ranges::find(record.turns, is_document ? Role::kDocument : Role::kUser, &Turn::role);
    VLMTRAIN_CHECK(first_turn != record.turns.end(), "the conversation has no turn of the user");
    if (!is_document) leading_placeholders += "\n";
    first_turn->text.insert(0, leading_placeholders);
    for (size_t& offset : first_turn->literal_placeholder_offsets) offset += leading_placeholders.size();
  }
}

namespace {

constexpr MediaKind kMaskKind{"mask", "", {"mask", "masks"}};

std::optional<int64_t> get_integer_field(const RecordJson& entry, const char* key, size_t number) {
  const RecordJson* value = find_present_value(entry, {key});
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) throw data_error("mask {}: its \"{}\" is not a whole number", number, key);
  return value->get<int64_t>();
}

bool is_rle(const RecordJson& value) {
  return value.is_object() && value.contains("size") && value.contains("counts");
}

MaskSource parse_mask(const RecordJson& entry, size_t number, const ImageRoot& root, size_t num_images) {
  MaskSource mask;
  const RecordJson* nested_rle = entry.is_object() ? find_present_value(entry, {"rle", "segmentation"}) : nullptr;
  const RecordJson& rle_json = nested_rle != nullptr ? *nested_rle : entry;
  if (is_rle(rle_json)) {
    try {
      mask.rle = parse_rle(rle_json);
    } catch (const UserError& error) {
      throw data_error("mask {}: {}", number, error.what());
    }
  } else {
    const auto file = nested_rle == nullptr ? parse_media_ref(entry) : std::nullopt;
    if (!file) {
      throw data_error(
          "mask {} is neither a path (\"path\") nor a run-length encoding (\"size\" and \"counts\"); convert polygons "
          "with pycocotools (mask.frPyObjects)",
          number);
    }
    mask.file = resolve_media_path(*file, number, root, kMaskKind);
  }
  if (entry.is_object()) {
    mask.value = get_integer_field(entry, "value", number);
    mask.image_index = get_integer_field(entry, "image", number).value_or(0);
    const RecordJson* structure = find_present_value(entry, {"structure", "label"});
    if (structure != nullptr && structure->is_string()) mask.structure = to_printable(structure->get<std::string>());
  }
  if (mask.rle && mask.value) {
    throw data_error("mask {}: \"value\" applies to mask files, not to run-length encodings; remove it", number);
  }
  if (mask.image_index < 0 || std::cmp_greater_equal(mask.image_index, num_images)) {
    throw data_error("mask {} is for image {} (counted from 0), and the record has {}", number, mask.image_index,
                     num_images);
  }
  return mask;
}

std::string parse_text_field(const RecordJson& value, std::string_view key) {
  if (value.is_string()) return to_printable(value.get_ref<const std::string&>());
  if (value.is_number_integer()) return value.dump();
  throw data_error("its \"{}\" is neither a string nor a list of strings", key);
}

/// Returns the texts of a key with one text or a list. Returns none if the key is absent.
std::vector<std::string> parse_text_list(const RecordJson& record, const char* key) {
  const auto it = record.find(key);
  if (it == record.end() || it->is_null()) return {};
  if (!it->is_array()) return {parse_text_field(*it, key)};
  std::vector<std::string> texts;
  texts.reserve(it->size());
  for (const RecordJson& item : *it) texts.push_back(parse_text_field(item, key));
  return texts;
}

std::vector<MaskSource> parse_masks(const RecordJson& record, const ImageRoot& root, size_t num_images) {
  const RecordJson* mask_list = nullptr;
  for (const char* key : kMaskKind.keys) {
    const RecordJson* value = find_present_value(record, {key});
    if (value != nullptr && mask_list != nullptr) throw data_error("has both \"mask\" and \"masks\"; keep one");
    if (value != nullptr) mask_list = value;
  }
  std::vector<MaskSource> masks;
  if (mask_list == nullptr) return masks;
  if (!mask_list->is_array()) return {parse_mask(*mask_list, 1, root, num_images)};
  for (const RecordJson& entry : *mask_list) masks.push_back(parse_mask(entry, masks.size() + 1, root, num_images));
  return masks;
}

}  // namespace

void set_volume_metadata(const RecordJson& record_json, Record& record) {
  const auto volumes = detect_volumes(record);
  if (volumes.empty()) return;  // without volumes, these keys may have other meanings
  record.subject_ids = parse_text_list(record_json, "subject_id");
  const auto modalities = parse_text_list(record_json, "modality");
  if (modalities.empty() || try_assign_modalities(volumes, modalities)) return;
  throw data_error("has {} modalities for {} volumes; give one for all, or one per volume", modalities.size(),
                   volumes.size());
}

void set_masks(const RecordJson& record_json, const ImageRoot& root, Record& record) {
  try {
    record.masks = parse_masks(record_json, root, record.images.size());
  } catch (const UserError& error) {
    record.mask_problem = error.what();
  }
}

}  // namespace vlmtrain::io
