#include "io/tar_media.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

constexpr std::array kMaskKeys{"mask", "masks"};

std::string get_file_name(const json& path) {
  const auto& text = path.get_ref<const std::string&>();
  return text.substr(text.rfind('/') + 1);
}

/// Of an entry of a list that is a path or {"path"}; null where it is neither.
const json* find_path(const json& entry) {
  if (entry.is_string()) return &entry;
  if (!entry.is_object()) return nullptr;
  const auto path = entry.find("path");
  return path != entry.end() && path->is_string() ? &*path : nullptr;
}

/// What stands under the first of `keys` that is there, as a list.
json to_list(const json& fields, const std::array<const char*, 2>& keys) {
  const auto key = std::ranges::find_if(keys, [&](const char* name) { return fields.contains(name); });
  if (key == keys.end()) return json::array();
  const json& value = fields[*key];
  return value.is_array() ? value : json::array({value});
}

std::vector<json>::const_iterator find_by_file_name(const std::vector<json>& media, const json& entry) {
  const json* path = find_path(entry);
  return std::ranges::find_if(media, [&](const json& media_item) {
    return path != nullptr && get_file_name(media_item["path"]) == get_file_name(*path);
  });
}

bool is_empty_entry(const json& entry) {
  return entry.is_null() || (entry.is_string() && entry.get_ref<const std::string&>().empty());
}

}  // namespace

bool lists_file(const json& fields, const std::array<const char*, 2>& keys, const std::string& path) {
  const std::vector<json> single{{{"path", path}}};
  return std::ranges::any_of(to_list(fields, keys),
                             [&](const json& entry) { return find_by_file_name(single, entry) != single.end(); });
}

void set_media(json& fields, const std::array<const char*, 2>& keys, std::vector<json> media) {
  if (media.empty()) return;
  const json listed = to_list(fields, keys);
  std::vector<json> sorted_media;
  for (const json& name : listed) {
    if (const auto it = find_by_file_name(media, name); it != media.end()) sorted_media.push_back(*it);
  }
  const bool is_full_match = sorted_media.size() == media.size() && listed.size() == media.size();
  if (!sorted_media.empty() && !is_full_match) {
    throw data_error(
        "its list \"{}\" names {} of the {} files that the tar has for it; name each of them once, or none",
        fields.contains(keys[0]) ? keys[0] : keys[1], sorted_media.size(), media.size());
  }
  for (const char* key : keys) fields.erase(key);
  fields[keys[1]] = is_full_match ? std::move(sorted_media) : std::move(media);
}

std::vector<std::string> merge_masks(json& fields, const std::vector<json>& masks) {
  if (masks.empty()) return {};
  json entries = to_list(fields, kMaskKeys);
  if (std::ranges::all_of(entries, is_empty_entry)) {
    for (const char* key : kMaskKeys) fields.erase(key);
    fields[kMaskKeys[1]] = masks;
    return {};
  }
  std::vector<std::string> unused_paths;
  for (const json& mask : masks) {
    const std::vector<json> single{mask};
    bool is_used = false;
    for (json& entry : entries) {
      if (find_by_file_name(single, entry) == single.end()) continue;
      if (!entry.is_object()) entry = json::object();
      entry.update(mask);
      is_used = true;
    }
    if (!is_used) unused_paths.push_back(mask["path"].get<std::string>());
  }
  for (const char* key : kMaskKeys) fields.erase(key);
  fields[kMaskKeys[1]] = std::move(entries);
  return unused_paths;
}

}  // namespace vlmtrain::io
