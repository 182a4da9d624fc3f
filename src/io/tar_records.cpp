#include "io/tar_records.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/dataset_record.h"
#include "io/record_json.h"
#include "io/stored_file.h"
#include "io/tar_members.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/base/natural_order.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

enum class PartKind { kOther, kJson, kText, kPicture, kVideo, kVolume };

/// Pictures and videos in formats that are not read are a record's media too: it cannot be used, rather than without
/// them.
constexpr std::array kPictures =
    std::to_array<std::string_view>({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif",
                                     "jxl", "jp2", "ppm", "pgm", "img", "image"});
constexpr std::array kVideos =
    std::to_array<std::string_view>({"mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "mpeg", "wmv", "flv", "ts"});

PartKind kind_of_word(std::string_view ending) {
  std::string word(ending);
  std::ranges::transform(word, word.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  if (word == "json") return PartKind::kJson;
  if (word == "txt") return PartKind::kText;
  if (std::ranges::find(kPictures, word) != kPictures.end()) return PartKind::kPicture;
  return std::ranges::find(kVideos, word) != kVideos.end() ? PartKind::kVideo : PartKind::kOther;
}

/// By its last word; of "png.0" by the one before the number.
PartKind part_kind(std::string_view ending) {
  if (is_named_like_a_volume("." + std::string(ending))) return PartKind::kVolume;
  const size_t dot = ending.rfind('.');
  const std::string_view last = ending.substr(dot + 1);
  const bool is_number = !last.empty() && std::ranges::all_of(last, [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number || dot == std::string_view::npos) return kind_of_word(last);
  const std::string_view before = ending.substr(0, dot);
  return kind_of_word(before.substr(before.rfind('.') + 1));
}

/// A file of a record; its ending is what follows the first dot.
struct Part {
  std::string ending;
  uint64_t offset;
  uint64_t bytes;
};

struct Group {
  std::string key;          // "folder/a"
  std::vector<Part> parts;  // in natural order of their endings
  std::string problem{};
};

/// What a tar holds, and nothing for the files of which records know nothing.
class Groups {
 public:
  void add(TarMember member) {
    const size_t name_begin = member.name.rfind('/') + 1;
    const size_t dot = member.name.find('.', name_begin);
    if (dot == std::string::npos || dot == name_begin) return;
    std::string ending = member.name.substr(dot + 1);
    if (part_kind(ending) == PartKind::kOther) return;
    Group& group = of(member.name.substr(0, dot));
    if (!member.problem.empty()) {
      group.problem = fmt::format("its file {} {}", excerpt(member.name), member.problem);
    } else if (std::ranges::find(group.parts, ending, &Part::ending) != group.parts.end()) {
      group.problem = fmt::format("its file {} is in the tar twice", excerpt(member.name));
    }
    group.parts.push_back({std::move(ending), member.offset, member.bytes});
  }

  std::vector<Group> take() {
    for (Group& group : groups_) {
      std::ranges::sort(group.parts, comes_before, &Part::ending);
      group.parts.shrink_to_fit();
    }
    return std::move(groups_);
  }

 private:
  Group& of(std::string key) {
    const auto [found, is_new] = places_.try_emplace(std::move(key), groups_.size());
    if (is_new) groups_.push_back({.key = found->first, .parts = {}});
    return groups_[found->second];
  }

  std::vector<Group> groups_;
  std::unordered_map<std::string, size_t> places_;
};

json binary(std::string_view bytes) {
  return json::binary(std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

class TarRecords final : public Records {
 public:
  TarRecords(StoredFile file, std::vector<Group> groups, const RecordSettings& settings)
      : file_(std::move(file)),
        groups_(std::move(groups)),
        reader_(settings, file_.path().parent_path()),
        columns_(settings.columns) {}

  int64_t size() const override { return std::ssize(groups_); }
  Record at(int64_t index) const override { return record(index, /*with_bytes=*/true); }
  Record text_at(int64_t index) const override { return record(index, /*with_bytes=*/false); }
  uint64_t stamp() const override { return ContentHash().add(file_.stamp()).add(reader_.stamp()).value(); }

 private:
  Record record(int64_t index, bool with_bytes) const {
    const Group& group = groups_.at(static_cast<size_t>(index));
    Record record;
    if (group.problem.empty()) {
      try {
        record = reader_.read(fields_of(group, with_bytes), group.key);
      } catch (const UserError& error) {
        if (error.code() != ExitCode::kBadData) throw;
        record.problem = error.what();
      }
    } else {
      record.problem = group.problem;
    }
    if (!record.problem.empty() && record.id.empty()) record.id = printable(group.key);
    record.place = fmt::format("files {}.*", printable(group.key));
    return record;
  }

  json fields_of(const Group& group, bool with_bytes) const {
    const StoredFile::Opened file(file_);
    json fields = json::object();
    for (const Part& part : group.parts) {
      if (part.ending == "json") fields = object_in(part, file);
    }
    std::vector<json> pictures;
    std::vector<json> videos;
    std::vector<json> volumes;
    for (const Part& part : group.parts) {
      const PartKind kind = part_kind(part.ending);
      json value;
      if (kind == PartKind::kText) {
        value = text_in(part, file);
        if (part.ending == "txt") fields.emplace("caption", value);
      } else if (kind != PartKind::kJson) {
        value = {{"path", group.key + "." + part.ending},
                 {"bytes", binary(with_bytes ? file.read(part.offset, part.bytes) : "")}};
        (kind == PartKind::kPicture ? pictures : kind == PartKind::kVideo ? videos : volumes).push_back(value);
      }
      if (is_named_by_columns(part.ending)) fields[part.ending] = std::move(value);
    }
    put_media(fields, {"image", "images"}, std::move(pictures));
    put_media(fields, {"video", "videos"}, std::move(videos));
    put_media(fields, {"volume", "volumes"}, std::move(volumes));
    return fields;
  }

  json object_in(const Part& part, const StoredFile::Opened& file) const {
    const std::string text = file.read(part.offset, part.bytes);
    auto value = parse_record_json(text);
    if (!value) {
      const JsonFault fault = find_json_fault(without_python_numbers(text));
      throw data_error("its .json is not valid JSON at line {}, column {}: {}", fault.line, fault.column, fault.reason);
    }
    if (!value->is_object()) throw data_error("its .json is not a JSON object");
    return *std::move(value);
  }

  static json text_in(const Part& part, const StoredFile::Opened& file) {
    std::string text = file.read(part.offset, part.bytes);
    if (!is_utf8(text)) throw data_error("its .{} is not valid UTF-8", part.ending);
    return text;
  }

  bool is_named_by_columns(const std::string& ending) const {
    return std::ranges::any_of(columns_, [&](const auto& column) { return column.second == ending; });
  }

  /// In the order of the record's own list, where that names these files and no others. A list of other names is of
  /// where the files once lay; one that names some of them is data_error.
  static void put_media(json& fields, const std::array<const char*, 2>& keys, std::vector<json> media) {
    if (media.empty()) return;
    const auto name_of = [](const json& path) {
      const auto& text = path.get_ref<const std::string&>();
      return text.substr(text.rfind('/') + 1);
    };
    const auto listed = std::ranges::find_if(keys, [&](const char* key) { return fields.contains(key); });
    json names = listed == keys.end() ? json::array() : fields[*listed];
    if (!names.is_array()) names = json::array({names});
    std::vector<json> ordered;
    for (const json& name : names) {
      if (!name.is_string()) break;
      const auto found =
          std::ranges::find_if(media, [&](const json& medium) { return name_of(medium["path"]) == name_of(name); });
      if (found != media.end()) ordered.push_back(*found);
    }
    const bool are_named = ordered.size() == media.size() && names.size() == media.size();
    if (!ordered.empty() && !are_named) {
      throw data_error(
          "its list \"{}\" names {} of the {} files that the tar has for it; name each of them once, or none", *listed,
          ordered.size(), media.size());
    }
    for (const char* key : keys) fields.erase(key);
    fields[keys[1]] = are_named ? ordered : media;
  }

  StoredFile file_;
  std::vector<Group> groups_;
  RecordReader reader_;
  std::map<std::string, std::string> columns_;
};

}  // namespace

std::shared_ptr<const Records> open_tar(const std::filesystem::path& file, const RecordSettings& settings) {
  StoredFile tar(file);
  Groups groups;
  for_each_member(tar, [&](TarMember member) { groups.add(std::move(member)); });
  return std::make_shared<TarRecords>(std::move(tar), groups.take(), settings);
}

}  // namespace vlmtrain::io
