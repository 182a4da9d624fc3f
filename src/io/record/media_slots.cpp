#include "io/record/media_slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "io/record/json_values.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/io/row_file.h"

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

/// Returns true for an image by its extension or its signature.
bool is_image_value(const RecordJson& value) {
  const auto media_ref = parse_media_ref(value);
  if (!media_ref) return false;
  if (media_ref->bytes) return has_image_signature(*media_ref->bytes);
  return has_image_extension(media_ref->path);
}

/// Returns true for text that begins with the signature of a JPEG, PNG or WebP file in base64. A path
/// that begins so is shorter.
bool is_base64_image(std::string_view text) {
  constexpr size_t kMinImageCharacters = 64;  // in base64; smaller than any image
  return text.size() >= kMinImageCharacters &&
         (text.starts_with("/9j/") || text.starts_with("iVBORw0KGgo") || text.starts_with("UklGR"));
}

MediaRef parse_media_item(const RecordJson& value, size_t number, const MediaKind& kind) {
  if (value.is_array()) return parse_frame_list(value, fmt::format("{} {}", kind.name, number), kind);
  auto media_ref = parse_media_ref(value);
  if (!media_ref) throw data_error("{} {} is not a path", kind.name, number);
  return *std::move(media_ref);
}

// Returns true if a list is the frames of one video, as in "video": ["0.jpg", "1.jpg"]. Two videos
// are written as "videos": [["0.jpg"], ["1.jpg"]].
bool is_frame_list(const RecordJson& value, const MediaKind& kind, bool is_singular_key) {
  return kind.name == kVideoKind.name && is_singular_key && value.is_array() && !value.empty() &&
         std::ranges::all_of(value, is_image_value);
}

void append_media(const RecordJson& value, const MediaKind& kind, bool is_singular_key, std::vector<MediaRef>& media) {
  if (!value.is_array() || is_frame_list(value, kind, is_singular_key)) {
    media.push_back(parse_media_item(value, media.size() + 1, kind));
    return;
  }
  media.reserve(media.size() + value.size());
  for (const RecordJson& item : value) {
    if (!is_blank(item)) media.push_back(parse_media_item(item, media.size() + 1, kind));
  }
}

bool is_same_media(const MediaRef& a, const MediaRef& b) {
  const bool has_same_bytes = a.bytes == b.bytes || (a.bytes && b.bytes && *a.bytes == *b.bytes);
  return a.path == b.path && has_same_bytes && std::ranges::equal(a.frames, b.frames, is_same_media);
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
      throw data_error("{} {} is an {}... URL, and only files are supported: save the {} and give its path", kind.name,
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
    throw data_error("{} {} is outside the image folder, {}, which data.outside_image_root=refuse forbids: {}",
                     kind.name, number, root.folder.string(), make_excerpt(file.path));
  }
  return file;
}

std::optional<MediaRef> parse_media_ref(const RecordJson& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) return std::nullopt;
    if (text.starts_with("data:")) return parse_data_url(text);
    return is_base64_image(text) ? parse_base64_media(text) : MediaRef(text);
  }
  if (value.is_binary()) {
    const auto& bytes = value.get_binary();
    MediaRef media_ref;
    media_ref.bytes = is_special_cell(value, SpecialCellKind::kOmittedBytes)
                          ? get_omitted_bytes_marker()
                          : std::make_shared<const std::string>(bytes.begin(), bytes.end());
    return media_ref;
  }
  if (!value.is_object()) return std::nullopt;
  const auto path = value.find("path");
  const auto bytes = value.find("bytes");
  const bool has_path = path != value.end() && path->is_string();
  if (bytes == value.end() || !bytes->is_binary()) {
    for (const char* key : kBase64Keys) {
      const auto base64 = value.find(key);
      if (base64 != value.end() && base64->is_string() && !is_blank(*base64)) {
        return parse_base64_media(base64->get_ref<const std::string&>());
      }
    }
    return has_path ? parse_media_ref(*path) : std::nullopt;
  }
  std::optional<MediaRef> media_ref = parse_media_ref(*bytes);
  if (has_path) media_ref->path = path->get<std::string>();
  return media_ref;
}

MediaRef parse_base64_media(std::string_view text) {
  auto bytes = base64_decode(text);
  if (!bytes) {
    throw data_error("the base64 data {} are invalid; correct them, or save the file and give its path",
                     make_excerpt(text));
  }
  MediaRef media_ref;
  media_ref.bytes = std::make_shared<const std::string>(*std::move(bytes));
  return media_ref;
}

MediaRef parse_data_url(std::string_view url) {
  const size_t comma = url.find(',');
  if (comma == std::string_view::npos || !url.substr(0, comma).ends_with(";base64")) {
    throw data_error("the data: URL {} is not in base64 (data:image/png;base64,…); save the file and give its path",
                     make_excerpt(url));
  }
  return parse_base64_media(url.substr(comma + 1));
}

MediaRef parse_frame_list(const RecordJson& list, const std::string& name, const MediaKind& kind) {
  if (kind.name != kVideoKind.name) {
    throw data_error("{} is a list: give each {} its own entry, and list video frames under \"videos\"", name,
                     kind.name);
  }
  if (list.empty()) throw data_error("{} is an empty list of frames", name);
  MediaRef video;
  video.frames.reserve(list.size());
  for (const RecordJson& item : list) {
    auto frame = parse_media_ref(item);
    if (!frame) throw data_error("frame {} of {} is not a path", video.frames.size() + 1, name);
    video.frames.push_back(*std::move(frame));
  }
  return video;
}

std::vector<MediaRef> parse_listed_media(const RecordJson& record, const MediaKind& kind) {
  std::vector<MediaRef> media;
  const RecordJson* first_value = nullptr;
  for (const char* key : kind.keys) {
    const auto it = record.find(key);
    if (it == record.end() || is_blank(*it)) continue;
    std::vector<MediaRef> key_media;
    append_media(*it, kind, key == kind.keys[0], key_media);
    if (first_value != nullptr && !std::ranges::equal(media, key_media, is_same_media)) {
      throw data_error("has both \"{}\" and \"{}\": keep one", kind.keys[0], kind.keys[1]);
    }
    first_value = &*it;
    media = std::move(key_media);
  }
  return media;
}

size_t count_listed_media(const RecordJson& record, const MediaKind& kind) {
  for (const char* key : kind.keys) {
    const auto it = record.find(key);
    if (it == record.end() || is_blank(*it)) continue;
    if (!it->is_array() || is_frame_list(*it, kind, key == kind.keys[0])) return 1;
    return static_cast<size_t>(std::ranges::count_if(*it, [](const RecordJson& entry) { return !is_blank(entry); }));
  }
  return 0;
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
    throw data_error("turn {} has {} for its {}: each {} needs one placeholder", turn + 1,
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
    throw data_error("has {} for {}: each {} needs one placeholder",
                     format_placeholder_count(*media_kind_, num_unassigned_slots()),
                     format_media_count(*media_kind_, listed_media.size()), media_kind_->name);
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

}  // namespace vlmtrain::io
