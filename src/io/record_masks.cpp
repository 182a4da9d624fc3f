#include "io/record_masks.h"

#include <nlohmann/json.hpp>

#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/rle.h"

namespace vlmtrain::io {

namespace {

using nlohmann::json;

constexpr MediaKind kMasks{"mask", "", {"mask", "masks"}};

const json* find_member(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto it = object.find(key);
    if (it != object.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

std::optional<int64_t> get_integer_field(const json& entry, const char* key, size_t number) {
  const json* value = find_member(entry, {key});
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) throw data_error("mask {}: its \"{}\" is no whole number", number, key);
  return value->get<int64_t>();
}

bool is_rle(const json& value) {
  return value.is_object() && value.contains("size") && value.contains("counts");
}

MaskSource parse_mask(const json& entry, size_t number, const ImageRoot& root, size_t num_images) {
  MaskSource mask;
  const json* wrapper = entry.is_object() ? find_member(entry, {"rle", "segmentation"}) : nullptr;
  const json& rle_json = wrapper != nullptr ? *wrapper : entry;
  if (is_rle(rle_json)) {
    try {
      mask.rle = parse_rle(rle_json);
    } catch (const UserError& error) {
      throw data_error("mask {}: {}", number, error.what());
    }
  } else {
    const auto file = wrapper == nullptr ? parse_media_ref(entry) : std::nullopt;
    if (!file) {
      throw data_error(
          "mask {} is neither a path (\"path\") nor a run-length encoding (\"size\" and \"counts\"); polygons are to "
          "be "
          "converted by pycocotools, frPyObjects",
          number);
    }
    mask.file = resolve_media_path(*file, number, root, kMasks);
  }
  if (entry.is_object()) {
    mask.value = get_integer_field(entry, "value", number);
    mask.image = get_integer_field(entry, "image", number).value_or(0);
    const json* structure = find_member(entry, {"structure", "label"});
    if (structure != nullptr && structure->is_string()) mask.structure = to_printable(structure->get<std::string>());
  }
  if (mask.rle && mask.value) {
    throw data_error("mask {}: \"value\" is of a picture's pixels, and a run-length encoding has none; take it out",
                     number);
  }
  if (mask.image < 0 || std::cmp_greater_equal(mask.image, num_images)) {
    throw data_error("mask {} lies in picture {} (counted from 0), and the record has {}", number, mask.image,
                     num_images);
  }
  return mask;
}

}  // namespace

std::vector<MaskSource> parse_masks(const json& record, const ImageRoot& root, size_t num_images) {
  const json* mask_list = nullptr;
  for (const char* key : kMasks.keys) {
    const json* value = find_member(record, {key});
    if (value != nullptr && mask_list != nullptr) throw data_error("has both \"mask\" and \"masks\": keep one");
    if (value != nullptr) mask_list = value;
  }
  std::vector<MaskSource> masks;
  if (mask_list == nullptr) return masks;
  if (!mask_list->is_array()) return {parse_mask(*mask_list, 1, root, num_images)};
  for (const json& entry : *mask_list) masks.push_back(parse_mask(entry, masks.size() + 1, root, num_images));
  return masks;
}

}  // namespace vlmtrain::io
