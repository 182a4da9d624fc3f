#include "io/tar_records.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/dataset_record.h"
#include "io/record_json.h"
#include "io/stored_file.h"
#include "io/tar_media.h"
#include "io/tar_members.h"
#include "io/tar_part.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/natural_order.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/lfs_pointer.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

struct Group {
  std::string key;             // "folder/a"
  std::vector<TarPart> parts;  // in natural order of their endings
  std::string problem{};
  bool is_record = false;
};

/// Returns true for kinds that make a record; files of other kinds are only looked at next to them.
bool makes_record(TarPartKind kind) {
  return kind != TarPartKind::kOther && kind != TarPartKind::kDerived;
}

/// The files of a tar by their keys. Hidden files, such as macOS's ._a.png, and those without an ending belong to no
/// record, as in webdataset.
class Groups {
 public:
  void add(TarMember member) {
    const size_t name_begin = member.name.rfind('/') + 1;
    const size_t dot = member.name.find('.', name_begin);
    if (dot == std::string::npos || dot == name_begin) return;
    std::string ending = member.name.substr(dot + 1);
    const bool is_part = makes_record(tar_part_kind(ending));
    if (!is_part && !member.problem.empty()) return;
    Group& group = of(member.name.substr(0, dot));
    group.is_record = group.is_record || is_part;
    if (!member.problem.empty()) {
      group.problem = fmt::format("its file {} {}", excerpt(member.name), member.problem);
    } else if (is_part && std::ranges::find(group.parts, ending, &TarPart::ending) != group.parts.end()) {
      group.problem = fmt::format("its file {} is in the tar twice", excerpt(member.name));
    }
    group.parts.push_back({std::move(ending), member.offset, member.bytes});
  }

  /// Warns of files that belong to no record.
  std::vector<Group> take(const std::filesystem::path& tar) {
    const auto other = std::ranges::find(groups_, false, &Group::is_record);
    if (other != groups_.end()) {
      spdlog::warn("{}: its file {} and {} like it belong to no record and are not read (docs/data.md)", tar.string(),
                   excerpt(other->key + "." + other->parts.front().ending),
                   std::ranges::count(groups_, false, &Group::is_record) - 1);
    }
    std::erase_if(groups_, [](const Group& group) { return !group.is_record; });
    for (Group& group : groups_) {
      std::ranges::sort(group.parts, comes_before, &TarPart::ending);
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
        std::vector<Notice> notices;
        json fields = fields_of(group, with_bytes, notices);
        record = reader_.read(std::move(fields), group.key);
        std::ranges::move(notices, std::back_inserter(record.notices));
      } catch (const UserError& error) {
        if (error.code() != ExitCode::kBadData) throw;
        record.problem = error.what();
      }
    } else {
      record.problem = group.problem;
    }
    if (!record.problem.empty() && record.id.empty()) record.id = printable(group.key);
    if (!record.problem.empty()) record.problem = hint_at_dots(group) + record.problem;
    record.place = fmt::format("files {}.*", printable(group.key));
    return record;
  }

  json fields_of(const Group& group, bool with_bytes, std::vector<Notice>& notices) const {
    const StoredFile::Opened file(file_);
    json fields = json::object();
    for (const TarPart& part : group.parts) {
      const bool is_own = lower_case(part.ending) == "json" && columns_for(part.ending).empty();
      if (is_own) fields = object_in(part, file);
    }
    std::vector<json> pictures, videos, volumes, masks;
    for (const TarPart& part : group.parts) {
      const std::string path = group.key + "." + part.ending;
      const auto columns = columns_for(part.ending);
      const TarPartKind kind = kind_in(fields, part, path, !columns.empty());
      json value;
      switch (kind) {
        case TarPartKind::kJson:
          if (columns.empty() && lower_case(part.ending) != "json") add_unused(part.ending, path, notices);
          if (!columns.empty()) value = json_in(part, file);
          break;
        case TarPartKind::kText:
          value = text_in(part, file);
          if (lower_case(part.ending) == "txt") {
            put_caption(fields, value, notices);
          } else if (columns.empty()) {
            add_unused(part.ending, path, notices);
          }
          break;
        case TarPartKind::kAudio:
          value = path;
          if (columns.empty()) fields["audio"] = value;  // which no model here takes: RecordReader says so
          break;
        case TarPartKind::kDerived:
        case TarPartKind::kOther:
          if (columns.empty()) {
            add_unused(part.ending, path, notices);
          } else {
            value = text_in(part, file);
          }
          break;
        default:
          value = {
              {"path", path},
              {"bytes", with_bytes ? binary(file.read(part.offset, part.bytes)) : row_value(RowValue::kDroppedBytes)}};
          (kind == TarPartKind::kPicture  ? pictures
           : kind == TarPartKind::kVideo  ? videos
           : kind == TarPartKind::kVolume ? volumes
                                          : masks)
              .push_back(value);
      }
      for (const std::string& column : columns) fields[column] = value;
    }
    put_media(fields, {"image", "images"}, std::move(pictures));
    put_media(fields, {"video", "videos"}, std::move(videos));
    put_media(fields, {"volume", "volumes"}, std::move(volumes));
    for (const std::string& path : put_masks(fields, masks)) {
      add_notice("mask file that the \"masks\" of its .json do not name", path, notices);
    }
    return fields;
  }

  /// Images that are named like masks or thumbnails are images of the record where it names them, or data.columns does.
  static TarPartKind kind_in(const json& fields, const TarPart& part, const std::string& path, bool is_column) {
    const TarPartKind kind = tar_part_kind(part.ending);
    if (kind != TarPartKind::kMask && kind != TarPartKind::kDerived) return kind;
    const bool is_volume = is_named_like_a_volume(part.ending);
    const bool is_listed =
        is_volume ? names_file(fields, {"volume", "volumes"}, path) : names_file(fields, {"image", "images"}, path);
    if (!is_listed && !is_column) return kind;
    return is_volume ? TarPartKind::kVolume : TarPartKind::kPicture;
  }

  static std::string read_text(const TarPart& part, const StoredFile::Opened& file) {
    std::string text = file.read(part.offset, part.bytes);
    if (is_git_lfs_pointer(text)) {
      throw data_error("its .{} is a Git LFS pointer, not the file itself; run `git lfs pull` and make the tar again",
                       excerpt(part.ending));
    }
    return text;
  }

  json json_in(const TarPart& part, const StoredFile::Opened& file) const {
    const std::string text = read_text(part, file);
    auto value = parse_record_json(text);
    if (value) return *std::move(value);
    const JsonFault fault = find_json_fault(without_python_numbers(text));
    throw data_error("its .{} is not valid JSON at line {}, column {}: {}", excerpt(part.ending), fault.line,
                     fault.column, fault.reason);
  }

  json object_in(const TarPart& part, const StoredFile::Opened& file) const {
    json value = json_in(part, file);
    if (!value.is_object()) throw data_error("its .{} is not a JSON object", part.ending);
    return value;
  }

  static json text_in(const TarPart& part, const StoredFile::Opened& file) {
    std::string text = read_text(part, file);
    if (!is_utf8(text)) throw data_error("its .{} is not valid UTF-8", excerpt(part.ending));
    return text;
  }

  /// Where the .json has a caption too, that counts.
  static void put_caption(json& fields, const json& text, std::vector<Notice>& notices) {
    const auto caption = fields.find("caption");
    if (caption == fields.end() || caption->is_null()) {
      fields["caption"] = text;
    } else if (*caption != text) {
      add_notice("file \".txt\" next to another \"caption\" in the .json", excerpt(text.get_ref<const std::string&>()),
                 notices);
    }
  }

  static void add_unused(const std::string& ending, const std::string& path, std::vector<Notice>& notices) {
    add_notice(fmt::format("file \".{}\" of a record", excerpt(ending)), path, notices);
  }

  static void add_notice(std::string kind, const std::string& path, std::vector<Notice>& notices) {
    if (std::ranges::find(notices, kind, &Notice::kind) != notices.end()) return;
    notices.push_back({.kind = std::move(kind), .example = excerpt(path)});
  }

  /// What data.columns calls a file by its ending, as it spells it.
  std::vector<std::string> columns_for(const std::string& ending) const {
    std::vector<std::string> names;
    for (const auto& [name, theirs] : columns_) {
      if (lower_case(theirs) == lower_case(ending)) names.push_back(theirs);
    }
    return names;
  }

  /// Names with dots end where webdataset ends them, which may throw several records together.
  std::string hint_at_dots(const Group& group) const {
    std::vector<std::string> names;
    bool is_cut = false;
    for (const TarPart& part : group.parts) {
      const TarPartKind kind = tar_part_kind(part.ending);
      const bool is_text = kind == TarPartKind::kJson || kind == TarPartKind::kText;
      is_cut = is_cut || (is_text && part.ending.find('.') != std::string::npos && columns_for(part.ending).empty());
      names.push_back(excerpt(group.key + "." + part.ending));
    }
    if (!is_cut) return {};
    constexpr size_t kMostNamed = 4;
    const size_t others = names.size() - std::min(names.size(), kMostNamed);
    names.resize(std::min(names.size(), kMostNamed));
    return fmt::format(
        "is made of all files that have the same name up to its first dot, as in webdataset: {}{}; name the files of "
        "each record without other dots; it ",
        fmt::join(names, ", "), others == 0 ? "" : fmt::format(" and {} more", others));
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
  auto groups_of_tar = groups.take(file);
  return std::make_shared<TarRecords>(std::move(tar), std::move(groups_of_tar), settings);
}

}  // namespace vlmtrain::io
