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

#include "io/dataset/record_files.h"
#include "io/dataset/tar_archive.h"
#include "io/record/record_reader.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {
namespace {

/// The files of a tar with the same key: their path up to the first dot of the file name.
struct FileGroup {
  std::string key;             // such as "folder/a"
  std::vector<TarFile> files;  // in natural order of their extensions
  std::string problem{};       // why the group cannot be read; else empty
  bool forms_record = false;   // true if a file is of a kind that forms a record
};

/// Returns true for kinds that form a record. Files of other kinds become notices of a record that
/// other files form.
bool can_form_record(TarFileKind kind) {
  return kind != TarFileKind::kOther && kind != TarFileKind::kDerivedMedia;
}

/// The files of a tar, grouped by key. As in webdataset, hidden files (macOS adds ._a.png) and
/// files without an extension are skipped.
class FileGroups {
 public:
  void add(TarMember member) {
    const size_t name_begin = member.name.rfind('/') + 1;
    const size_t dot = member.name.find('.', name_begin);
    if (dot == std::string::npos || dot == name_begin) return;
    std::string extension = member.name.substr(dot + 1);
    const bool is_record_file = can_form_record(classify_tar_extension(extension));
    if (!is_record_file && !member.problem.empty()) return;
    FileGroup& group = find_or_add_group(member.name.substr(0, dot));
    group.forms_record = group.forms_record || is_record_file;
    if (!member.problem.empty()) {
      group.problem = fmt::format("its file {} {}", make_excerpt(member.name), member.problem);
    } else if (is_record_file && std::ranges::find(group.files, extension, &TarFile::extension) != group.files.end()) {
      group.problem = fmt::format("its file {} occurs twice in the tar", make_excerpt(member.name));
    }
    group.files.push_back({std::move(extension), member.offset, member.bytes});
  }

  /// Returns the groups that form records and leaves this object empty. Logs a warning about files
  /// that do not belong to a record.
  std::vector<FileGroup> take_record_groups(const std::filesystem::path& tar) {
    const auto unused_group = std::ranges::find(groups_, false, &FileGroup::forms_record);
    if (unused_group != groups_.end()) {
      spdlog::warn(
          "{}: its file {} and the files of {} more keys do not belong to a record and are ignored "
          "(docs/reference/data-formats.md)",
          tar.string(), make_excerpt(unused_group->key + "." + unused_group->files.front().extension),
          std::ranges::count(groups_, false, &FileGroup::forms_record) - 1);
    }
    std::erase_if(groups_, [](const FileGroup& group) { return !group.forms_record; });
    for (FileGroup& group : groups_) {
      std::ranges::sort(group.files, precedes_in_natural_order, &TarFile::extension);
      group.files.shrink_to_fit();
    }
    return std::move(groups_);
  }

 private:
  FileGroup& find_or_add_group(std::string key) {
    const auto [it, is_new] = group_index_by_key_.try_emplace(std::move(key), groups_.size());
    if (is_new) groups_.push_back({.key = it->first, .files = {}});
    return groups_[it->second];
  }

  std::vector<FileGroup> groups_;
  std::unordered_map<std::string, size_t> group_index_by_key_;
};

RecordJson to_json_binary(std::string_view bytes) {
  return RecordJson::binary(std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

class TarRecords final : public Records {
 public:
  TarRecords(DataFile archive, std::vector<FileGroup> groups, const RecordSettings& settings)
      : file_(std::move(archive)),
        groups_(std::move(groups)),
        reader_(settings, file_.path().parent_path()),
        columns_(settings.columns) {}

  int64_t size() const override { return std::ssize(groups_); }
  Record at(int64_t index) const override { return read_record(index, /*include_media_bytes=*/true); }
  Record at_without_media_bytes(int64_t index) const override {
    return read_record(index, /*include_media_bytes=*/false);
  }
  uint64_t version_hash() const override {
    return ContentHash().add(file_.version_hash()).add(reader_.version_hash()).value();
  }

 private:
  Record read_record(int64_t index, bool include_media_bytes) const {
    const FileGroup& group = groups_.at(static_cast<size_t>(index));
    Record record;
    if (group.problem.empty()) {
      try {
        std::vector<Notice> notices;
        RecordJson fields = read_record_fields(group, include_media_bytes, notices);
        record = reader_.read(std::move(fields), group.key);
        std::ranges::move(notices, std::back_inserter(record.notices));
      } catch (const UserError& error) {
        if (error.code() != ExitCode::kBadData) throw;
        record.problem = error.what();
      }
    } else {
      record.problem = group.problem;
    }
    if (!record.problem.empty() && record.id.empty()) record.id = to_printable(group.key);
    if (!record.problem.empty()) record.problem = make_dotted_names_hint(group) + record.problem;
    record.location = fmt::format("files {}.*", to_printable(group.key));
    return record;
  }

  /// Returns the record of a group as the JSON object that RecordReader expects.
  RecordJson read_record_fields(const FileGroup& group, bool include_media_bytes, std::vector<Notice>& notices) const {
    const DataFile::OpenHandle archive(file_);
    RecordJson fields = RecordJson::object();
    for (const TarFile& file : group.files) {
      const bool is_record_json =
          to_lower_ascii(file.extension) == "json" && find_mapped_columns(file.extension).empty();
      if (is_record_json) fields = read_json_object(file, archive);
    }
    std::vector<RecordJson> images, videos, volumes, masks;
    for (const TarFile& file : group.files) {
      const std::string path = group.key + "." + file.extension;
      const auto columns = find_mapped_columns(file.extension);
      const TarFileKind kind = classify_file(fields, file, path, !columns.empty());
      RecordJson value;
      switch (kind) {
        case TarFileKind::kJson:
          if (columns.empty() && to_lower_ascii(file.extension) != "json")
            add_unused_file_notice(file.extension, path, notices);
          if (!columns.empty()) value = read_json_value(file, archive);
          break;
        case TarFileKind::kText:
          value = read_text_as_json(file, archive);
          if (to_lower_ascii(file.extension) == "txt") {
            set_caption_if_missing(fields, value, notices);
          } else if (columns.empty()) {
            add_unused_file_notice(file.extension, path, notices);
          }
          break;
        case TarFileKind::kAudio:
          value = path;
          if (columns.empty()) fields["audio"] = value;  // RecordReader reports it, because no model supports audio
          break;
        case TarFileKind::kDerivedMedia:
        case TarFileKind::kOther:
          if (columns.empty()) {
            add_unused_file_notice(file.extension, path, notices);
          } else {
            value = read_text_as_json(file, archive);
          }
          break;
        default:
          value = {{"path", path},
                   {"bytes", include_media_bytes ? to_json_binary(archive.read(file.offset, file.bytes))
                                                 : make_special_cell(SpecialCellKind::kOmittedBytes)}};
          (kind == TarFileKind::kImage    ? images
           : kind == TarFileKind::kVideo  ? videos
           : kind == TarFileKind::kVolume ? volumes
                                          : masks)
              .push_back(value);
      }
      for (const std::string& column : columns) fields[column] = value;
    }
    set_media_field(fields, {"image", "images"}, std::move(images));
    set_media_field(fields, {"video", "videos"}, std::move(videos));
    set_media_field(fields, {"volume", "volumes"}, std::move(volumes));
    for (const std::string& path : merge_masks(fields, masks)) {
      add_notice("mask file that the \"masks\" of its .json do not name", path, notices);
    }
    return fields;
  }

  /// Returns the kind of a file. A file that is named like a mask or a thumbnail is an image or
  /// volume of the record if the .json or data.columns names it.
  static TarFileKind classify_file(const RecordJson& fields, const TarFile& file, const std::string& path,
                                   bool is_mapped_column) {
    const TarFileKind kind = classify_tar_extension(file.extension);
    if (kind != TarFileKind::kMask && kind != TarFileKind::kDerivedMedia) return kind;
    const bool is_volume = has_nifti_extension(file.extension);
    const bool is_listed = is_volume ? is_file_listed(fields, {"volume", "volumes"}, path)
                                     : is_file_listed(fields, {"image", "images"}, path);
    if (!is_listed && !is_mapped_column) return kind;
    return is_volume ? TarFileKind::kVolume : TarFileKind::kImage;
  }

  static std::string read_file_text(const TarFile& file, const DataFile::OpenHandle& archive) {
    std::string text = archive.read(file.offset, file.bytes);
    if (is_git_lfs_pointer(text)) {
      throw data_error("its .{} is a Git LFS pointer, not the file itself; run `git lfs pull` and create the tar again",
                       make_excerpt(file.extension));
    }
    return text;
  }

  RecordJson read_json_value(const TarFile& file, const DataFile::OpenHandle& archive) const {
    const std::string text = read_file_text(file, archive);
    auto value = parse_record_json(text);
    if (value) return *std::move(value);
    const JsonError error = find_json_error(zero_non_finite_literals(text));
    throw data_error("its .{} is not valid JSON at line {}, column {}: {}", make_excerpt(file.extension), error.line,
                     error.column, error.reason);
  }

  RecordJson read_json_object(const TarFile& file, const DataFile::OpenHandle& archive) const {
    RecordJson value = read_json_value(file, archive);
    if (!value.is_object()) throw data_error("its .{} is not a JSON object", file.extension);
    return value;
  }

  static RecordJson read_text_as_json(const TarFile& file, const DataFile::OpenHandle& archive) {
    std::string text = read_file_text(file, archive);
    if (!is_utf8(text)) throw data_error("its .{} is not valid UTF-8", make_excerpt(file.extension));
    return text;
  }

  /// Sets the caption unless the .json has one. A different one becomes a notice.
  static void set_caption_if_missing(RecordJson& fields, const RecordJson& text, std::vector<Notice>& notices) {
    const auto caption = fields.find("caption");
    if (caption == fields.end() || caption->is_null()) {
      fields["caption"] = text;
    } else if (*caption != text) {
      add_notice("file \".txt\" next to another \"caption\" in the .json",
                 make_excerpt(text.get_ref<const std::string&>()), notices);
    }
  }

  static void add_unused_file_notice(const std::string& extension, const std::string& path,
                                     std::vector<Notice>& notices) {
    add_notice(fmt::format("file \".{}\" of a record", make_excerpt(extension)), path, notices);
  }

  static void add_notice(std::string kind, const std::string& path, std::vector<Notice>& notices) {
    if (std::ranges::find(notices, kind, &Notice::kind) != notices.end()) return;
    notices.push_back({.kind = std::move(kind), .example = make_excerpt(path)});
  }

  /// Returns the names of columns in data.columns that equal this extension, ignoring case.
  std::vector<std::string> find_mapped_columns(const std::string& extension) const {
    std::vector<std::string> names;
    for (const auto& [name, source_name] : columns_) {
      if (to_lower_ascii(source_name) == to_lower_ascii(extension)) names.push_back(source_name);
    }
    return names;
  }

  /// Returns the beginning of a message about a group whose file names have several dots, else "".
  /// Such names may merge several records by mistake: as in webdataset, keys end at the first dot.
  std::string make_dotted_names_hint(const FileGroup& group) const {
    std::vector<std::string> names;
    bool has_extra_dots = false;
    for (const TarFile& file : group.files) {
      const TarFileKind kind = classify_tar_extension(file.extension);
      const bool is_text = kind == TarFileKind::kJson || kind == TarFileKind::kText;
      has_extra_dots = has_extra_dots || (is_text && file.extension.find('.') != std::string::npos &&
                                          find_mapped_columns(file.extension).empty());
      names.push_back(make_excerpt(group.key + "." + file.extension));
    }
    if (!has_extra_dots) return {};
    constexpr size_t kMaxNamedFiles = 4;  // shows the common part of the names; more only lengthen the message
    const size_t num_other_files = names.size() - std::min(names.size(), kMaxNamedFiles);
    names.resize(std::min(names.size(), kMaxNamedFiles));
    return fmt::format(
        "consists of all files with the same name up to the first dot, as in webdataset: {}{}; name the files of each "
        "record without other dots; it ",
        fmt::join(names, ", "), num_other_files == 0 ? "" : fmt::format(" and {} more", num_other_files));
  }

  DataFile file_;
  std::vector<FileGroup> groups_;
  RecordReader reader_;
  std::map<std::string, std::string> columns_;
};

}  // namespace

std::shared_ptr<const Records> open_tar_records(const std::filesystem::path& path, const RecordSettings& settings) {
  DataFile tar(path);
  FileGroups groups;
  for_each_tar_member(tar, [&](TarMember member) { groups.add(std::move(member)); });
  auto record_groups = groups.take_record_groups(path);
  return std::make_shared<TarRecords>(std::move(tar), std::move(record_groups), settings);
}

}  // namespace vlmtrain::io
