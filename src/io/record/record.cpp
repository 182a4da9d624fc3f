#include "vlmtrain/io/record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"

namespace vlmtrain::io {

std::vector<MediaPlaceholder> find_placeholders(const Turn& turn) {
  static_assert(kImagePlaceholder.size() == kVideoPlaceholder.size());
  const std::string_view text = turn.text;
  std::vector<MediaPlaceholder> placeholders;
  for (size_t pos = text.find('<'); pos != std::string_view::npos; pos = text.find('<', pos + 1)) {
    const std::string_view candidate = text.substr(pos, kImagePlaceholder.size());
    const bool is_placeholder = candidate == kImagePlaceholder || candidate == kVideoPlaceholder;
    if (!is_placeholder || std::ranges::binary_search(turn.literal_placeholder_offsets, pos)) continue;
    placeholders.push_back({.begin = pos, .is_video = candidate == kVideoPlaceholder});
  }
  return placeholders;
}

int64_t count_text_windows(int64_t tokens, int64_t window_tokens) {
  VLMTRAIN_CHECK(window_tokens >= 2, "windows of {} tokens", window_tokens);
  const int64_t step = window_tokens - 1;  // consecutive windows share one token
  return tokens <= window_tokens ? 1 : 1 + (tokens - window_tokens + step - 1) / step;
}

bool has_answer_fields(const Turn& turn) {
  return turn.role == Role::kAssistant && std::ranges::any_of(turn.fields, [](const TemplateValue& field) {
           return field.name != "name" && field.name != "tool_call_id";
         });
}

const std::shared_ptr<const std::string>& get_omitted_bytes_marker() {
  static const auto bytes = std::make_shared<const std::string>();
  return bytes;
}

const std::string& get_media_bytes(const MediaRef& media_ref) {
  VLMTRAIN_CHECK(media_ref.bytes != nullptr && media_ref.bytes != get_omitted_bytes_marker(),
                 "{}: its record was read without bytes", media_ref.path);
  return *media_ref.bytes;
}

std::string describe_volume(const Record& record, size_t index) {
  const auto begin = record.images.begin(), target = begin + static_cast<std::ptrdiff_t>(index);
  const auto volume_index =
      static_cast<size_t>(std::count_if(begin, target, [](const auto& image) { return image.is_volume; }));
  const auto num_volumes = static_cast<size_t>(std::ranges::count(record.images, true, &MediaRef::is_volume));
  // If the numbers of subjects and volumes are equal, the n-th subject belongs to the n-th volume.
  // Otherwise all subjects apply to all volumes.
  std::string name = record.images[index].modality;
  const std::string subject_id = record.subject_ids.size() == num_volumes
                                     ? record.subject_ids[volume_index]
                                     : fmt::format("{}", fmt::join(record.subject_ids, ", "));
  if (!name.empty() && !subject_id.empty()) name += ", ";
  return name += subject_id;
}

std::vector<MediaRef*> detect_volumes(Record& record) {
  std::vector<MediaRef*> volumes;
  for (MediaRef& media_ref : record.images) {
    media_ref.is_volume |= has_nifti_extension(media_ref.path);
    if (media_ref.is_volume) volumes.push_back(&media_ref);
  }
  return volumes;
}

bool try_assign_modalities(std::span<MediaRef* const> volumes, std::span<const std::string> modalities) {
  if (modalities.size() != 1 && modalities.size() != volumes.size()) return false;
  for (size_t i = 0; i < volumes.size(); ++i) volumes[i]->modality = modalities[modalities.size() == 1 ? 0 : i];
  return true;
}

}  // namespace vlmtrain::io
