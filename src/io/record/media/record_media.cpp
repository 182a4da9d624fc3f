#include "io/record/media/record_media.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/io/rle.h"

namespace vlmtrain::io {

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
    if (value != nullptr && mask_list != nullptr) throw data_error("has both \"mask\" and \"masks\": keep one");
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
  throw data_error("has {} modalities for {} volumes: give one for all, or one per volume", modalities.size(),
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
