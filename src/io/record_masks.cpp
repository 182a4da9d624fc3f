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

const json* member(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

std::optional<int64_t> whole_number(const json& entry, const char* key, size_t number) {
  const json* value = member(entry, {key});
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) throw data_error("mask {}: its \"{}\" is no whole number", number, key);
  return value->get<int64_t>();
}

bool is_rle(const json& value) {
  return value.is_object() && value.contains("size") && value.contains("counts");
}

MaskSource mask_of(const json& entry, size_t number, const MediaRoot& root, size_t images) {
  MaskSource mask;
  const json* around = entry.is_object() ? member(entry, {"rle", "segmentation"}) : nullptr;
  const json& shape = around != nullptr ? *around : entry;
  if (is_rle(shape)) {
    try {
      mask.rle = parse_rle(shape);
    } catch (const UserError& error) {
      throw data_error("mask {}: {}", number, error.what());
    }
  } else {
    const auto file = around == nullptr ? medium_of(entry) : std::nullopt;
    if (!file) {
      throw data_error(
          "mask {} is neither a path (\"path\") nor a run-length encoding (\"size\" and \"counts\"); polygons are to "
          "be "
          "converted by pycocotools, frPyObjects",
          number);
    }
    mask.file = placed(*file, number, root, kMasks);
  }
  if (entry.is_object()) {
    mask.value = whole_number(entry, "value", number);
    mask.image = whole_number(entry, "image", number).value_or(0);
    const json* structure = member(entry, {"structure", "label"});
    if (structure != nullptr && structure->is_string()) mask.structure = printable(structure->get<std::string>());
  }
  if (mask.rle && mask.value) {
    throw data_error("mask {}: \"value\" is of a picture's pixels, and a run-length encoding has none; take it out",
                     number);
  }
  if (mask.image < 0 || std::cmp_greater_equal(mask.image, images)) {
    throw data_error("mask {} lies in picture {} (counted from 0), and the record has {}", number, mask.image, images);
  }
  return mask;
}

}  // namespace

std::vector<MaskSource> masks_of(const json& record, const MediaRoot& root, size_t images) {
  const json* listed = nullptr;
  for (const char* key : kMasks.keys) {
    const json* found = member(record, {key});
    if (found != nullptr && listed != nullptr) throw data_error("has both \"mask\" and \"masks\": keep one");
    if (found != nullptr) listed = found;
  }
  std::vector<MaskSource> masks;
  if (listed == nullptr) return masks;
  if (!listed->is_array()) return {mask_of(*listed, 1, root, images)};
  for (const json& entry : *listed) masks.push_back(mask_of(entry, masks.size() + 1, root, images));
  return masks;
}

}  // namespace vlmtrain::io
