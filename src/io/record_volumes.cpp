#include "io/record_volumes.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/scan_name.h"

namespace vlmtrain::io {

namespace {

using nlohmann::json;

std::string parse_text(const json& value, std::string_view key) {
  if (value.is_string()) return to_printable(value.get_ref<const std::string&>());
  if (value.is_number_integer()) return value.dump();
  throw data_error("its \"{}\" is neither a text nor a list of texts", key);
}

/// Of a key with one text or a list; empty where it is absent.
std::vector<std::string> parse_text_list(const json& record, const char* key) {
  const auto it = record.find(key);
  if (it == record.end() || it->is_null()) return {};
  if (!it->is_array()) return {parse_text(*it, key)};
  std::vector<std::string> texts;
  texts.reserve(it->size());
  for (const json& item : *it) texts.push_back(parse_text(item, key));
  return texts;
}

}  // namespace

std::vector<MediaRef> parse_images_or_volumes(const json& value) {
  std::vector<MediaRef> images = parse_listed_media(value, kImages);
  const auto volume_value = value.find("volume");
  const bool is_number =
      volume_value != value.end() && (volume_value->is_number() || volume_value->is_boolean());  // of something else
  std::vector<MediaRef> volumes = is_number ? std::vector<MediaRef>{} : parse_listed_media(value, kVolumes);
  if (volumes.empty()) return images;
  if (!images.empty()) {
    throw data_error("has images and volumes, and nothing says which {} mark is whose: list them all under \"images\"",
                     kImagePlaceholder);
  }
  for (MediaRef& volume : volumes) volume.is_volume = true;
  return volumes;
}

std::vector<MediaRef> parse_record_images(const json& value, MediaSlots& media_slots) {
  std::vector<MediaRef> media = parse_images_or_volumes(value);
  if (!media.empty() && media.front().is_volume) media_slots.set_kind(kVolumes);
  return media;
}

void set_volume_metadata(const json& value, Record& record) {
  const auto volumes = find_volumes(record);
  if (volumes.empty()) return;  // such words may mean anything
  record.subjects = parse_text_list(value, "subject_id");
  const auto modalities = parse_text_list(value, "modality");
  if (modalities.empty() || assign_modalities(volumes, modalities)) return;
  throw data_error("has {} modalities for {} volumes: name one for all, or one for each", modalities.size(),
                   volumes.size());
}

}  // namespace vlmtrain::io
