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

std::string word_in(const json& value, std::string_view key) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  if (value.is_number_integer()) return value.dump();
  throw data_error("its \"{}\" is neither a text nor a list of texts", key);
}

/// Of a key with one text or a list; empty where it is absent.
std::vector<std::string> words_in(const json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end() || found->is_null()) return {};
  if (!found->is_array()) return {word_in(*found, key)};
  std::vector<std::string> words;
  words.reserve(found->size());
  for (const json& item : *found) words.push_back(word_in(item, key));
  return words;
}

}  // namespace

std::vector<Medium> listed_images_and_volumes(const json& value) {
  std::vector<Medium> images = listed_media(value, kImages);
  const auto one = value.find("volume");
  const bool is_amount = one != value.end() && (one->is_number() || one->is_boolean());  // of something else
  std::vector<Medium> volumes = is_amount ? std::vector<Medium>{} : listed_media(value, kVolumes);
  if (volumes.empty()) return images;
  if (!images.empty()) {
    throw data_error("has images and volumes, and nothing says which {} mark is whose: list them all under \"images\"",
                     kImageMark);
  }
  for (Medium& volume : volumes) volume.is_volume = true;
  return volumes;
}

std::vector<Medium> images_and_volumes(const json& value, MediaPlaces& places) {
  std::vector<Medium> media = listed_images_and_volumes(value);
  if (!media.empty() && media.front().is_volume) places.call(kVolumes);
  return media;
}

void name_volumes(const json& value, Record& record) {
  const auto volumes = volumes_in(record);
  if (volumes.empty()) return;  // such words may mean anything
  record.subjects = words_in(value, "subject_id");
  const auto modalities = words_in(value, "modality");
  if (modalities.empty() || give_modalities(volumes, modalities)) return;
  throw data_error("has {} modalities for {} volumes: name one for all, or one for each", modalities.size(),
                   volumes.size());
}

}  // namespace vlmtrain::io
