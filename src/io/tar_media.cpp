#include "io/tar_media.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

constexpr std::array kMaskKeys{"mask", "masks"};

std::string file_name(const json& path) {
  const auto& text = path.get_ref<const std::string&>();
  return text.substr(text.rfind('/') + 1);
}

/// Of an entry of a list that is a path or {"path"}; null where it is neither.
const json* path_in(const json& entry) {
  if (entry.is_string()) return &entry;
  if (!entry.is_object()) return nullptr;
  const auto path = entry.find("path");
  return path != entry.end() && path->is_string() ? &*path : nullptr;
}

/// What stands under the first of `keys` that is there, as a list.
json listed(const json& fields, const std::array<const char*, 2>& keys) {
  const auto key = std::ranges::find_if(keys, [&](const char* name) { return fields.contains(name); });
  if (key == keys.end()) return json::array();
  const json& value = fields[*key];
  return value.is_array() ? value : json::array({value});
}

std::vector<json>::const_iterator find_named(const std::vector<json>& media, const json& entry) {
  const json* path = path_in(entry);
  return std::ranges::find_if(
      media, [&](const json& medium) { return path != nullptr && file_name(medium["path"]) == file_name(*path); });
}

bool is_empty(const json& entry) {
  return entry.is_null() || (entry.is_string() && entry.get_ref<const std::string&>().empty());
}

}  // namespace

bool names_file(const json& fields, const std::array<const char*, 2>& keys, const std::string& path) {
  const std::vector<json> one{{{"path", path}}};
  return std::ranges::any_of(listed(fields, keys),
                             [&](const json& entry) { return find_named(one, entry) != one.end(); });
}

void put_media(json& fields, const std::array<const char*, 2>& keys, std::vector<json> media) {
  if (media.empty()) return;
  const json names = listed(fields, keys);
  std::vector<json> ordered;
  for (const json& name : names) {
    if (const auto found = find_named(media, name); found != media.end()) ordered.push_back(*found);
  }
  const bool are_named = ordered.size() == media.size() && names.size() == media.size();
  if (!ordered.empty() && !are_named) {
    throw data_error(
        "its list \"{}\" names {} of the {} files that the tar has for it; name each of them once, or none",
        fields.contains(keys[0]) ? keys[0] : keys[1], ordered.size(), media.size());
  }
  for (const char* key : keys) fields.erase(key);
  fields[keys[1]] = are_named ? std::move(ordered) : std::move(media);
}

std::vector<std::string> put_masks(json& fields, const std::vector<json>& masks) {
  if (masks.empty()) return {};
  json entries = listed(fields, kMaskKeys);
  if (std::ranges::all_of(entries, is_empty)) {
    for (const char* key : kMaskKeys) fields.erase(key);
    fields[kMaskKeys[1]] = masks;
    return {};
  }
  std::vector<std::string> unused;
  for (const json& mask : masks) {
    const std::vector<json> one{mask};
    bool is_used = false;
    for (json& entry : entries) {
      if (find_named(one, entry) == one.end()) continue;
      if (!entry.is_object()) entry = json::object();
      entry.update(mask);
      is_used = true;
    }
    if (!is_used) unused.push_back(mask["path"].get<std::string>());
  }
  for (const char* key : kMaskKeys) fields.erase(key);
  fields[kMaskKeys[1]] = std::move(entries);
  return unused;
}

}  // namespace vlmtrain::io
