#include "io/dataset/tar_archive.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"

namespace vlmtrain::io {

namespace {

// Offsets, sizes and type flags of header fields below are those of the formats in tar_archive.h.

constexpr uint64_t kTarBlockBytes = 512;  // unit of headers and contents
/// Maximum size of an extended header. Chosen without measurement: names and pax records of data
/// sets are far smaller, so a larger size indicates a damaged tar.
constexpr uint64_t kMaxTarHeaderBytes = uint64_t{1} << 20;

/// Returns a field of a header up to its first NUL.
std::string_view extract_header_field(std::string_view header, size_t offset, size_t bytes) {
  const std::string_view field = header.substr(offset, bytes);
  return field.substr(0, field.find('\0'));
}

/// Parses octal digits surrounded by spaces, or GNU tar's big-endian binary form for larger
/// numbers, which is marked by the highest bit. Returns nothing if invalid or not less than 2^62.
std::optional<uint64_t> parse_number(std::string_view header, size_t offset, size_t bytes) {
  const std::string_view field = header.substr(offset, bytes);
  uint64_t value = 0;
  if ((static_cast<unsigned char>(field.front()) & 0x80U) != 0) {
    for (const char c : field.substr(field.size() - sizeof(value))) {
      value = value << 8U | static_cast<unsigned char>(c);
    }
    return value >> 62U == 0 ? std::optional(value) : std::nullopt;
  }
  const size_t begin = field.find_first_not_of(' ');
  const size_t end =
      std::min(field.find_first_of(std::string_view(" \0", 2), std::min(begin, field.size())), field.size());
  for (size_t i = begin; i < end; ++i) {
    if (field[i] < '0' || field[i] > '7') return std::nullopt;
    value = value * 8 + static_cast<uint64_t>(field[i] - '0');
  }
  return value;
}

/// Returns true if the checksum field is the sum of all bytes of the header, in which the field
/// itself counts as spaces.
bool is_checksum_valid(std::string_view header) {
  constexpr size_t kChecksumOffset = 148;
  constexpr size_t kChecksumBytes = 8;
  uint64_t sum = kChecksumBytes * ' ';
  for (size_t i = 0; i < header.size(); ++i) {
    if (i < kChecksumOffset || i >= kChecksumOffset + kChecksumBytes) sum += static_cast<unsigned char>(header[i]);
  }
  return parse_number(header, kChecksumOffset, kChecksumBytes) == sum;
}

/// Returns the name field. In POSIX headers, the prefix field has the first part of a long name;
/// GNU headers use these bytes for other fields.
std::string extract_member_name(std::string_view header) {
  constexpr std::string_view kPosixMagic("ustar\0", 6);
  const std::string name(extract_header_field(header, 0, 100));
  const std::string_view prefix = header.substr(257, 6) == kPosixMagic ? extract_header_field(header, 345, 155) : "";
  return prefix.empty() ? name : std::string(prefix) + "/" + name;
}

class TarScanner {
 public:
  explicit TarScanner(const DataFile& tar) : tar_(tar), tar_handle_(tar) {}

  void visit_members(const std::function<void(TarMember)>& visit) {
    while (offset_ + kTarBlockBytes <= tar_.size()) {
      const std::string header = tar_handle_.read(offset_, kTarBlockBytes);
      if (header.find_first_not_of('\0') == std::string::npos) return;
      const auto bytes = parse_number(header, 124, 12);
      if (!is_checksum_valid(header) || !bytes) fail("has no member header");
      offset_ += kTarBlockBytes;
      handle_header(header, *bytes, visit);
    }
    if (offset_ < tar_.size()) fail("ends within a header");
  }

 private:
  void handle_header(std::string_view header, uint64_t bytes, const std::function<void(TarMember)>& visit) {
    switch (header[156]) {
      case 'L':  // GNU: the content is the name of the next member
        pending_attributes_.name = std::string(extract_header_field(read_extended_header(bytes), 0, std::string::npos));
        break;
      case 'x':  // pax: the content is attributes of the next member
        parse_pax_records(read_extended_header(bytes));
        break;
      case '0':
      case '\0':   // a file in tars older than POSIX
      case '7':    // a contiguous file, which readers treat as a file
      case 'S': {  // GNU: a sparse file
        TarMember member{.name = pending_attributes_.name.value_or(extract_member_name(header)),
                         .offset = offset_,
                         .bytes = pending_attributes_.bytes.value_or(bytes)};
        if (header[156] == 'S' || pending_attributes_.is_sparse)
          member.problem = "is stored as a sparse file, which is not supported";
        skip_content(member.bytes);
        if (offset_ > tar_.size()) {
          member.problem = "is truncated: the tar ends within it";
          offset_ = tar_.size();
        }
        pending_attributes_ = {};
        if (!member.name.ends_with('/')) visit(std::move(member));
        return;
      }
      case 'K':
      case 'g':
        break;     // long link targets and global pax headers are not needed
      case '1':    // a hard link
      case '2': {  // a symbolic link
        TarMember member{
            .name = pending_attributes_.name.value_or(extract_member_name(header)),
            .offset = offset_,
            .problem =
                "is a link, and links are not followed; create the tar with --dereference and --hard-dereference"};
        pending_attributes_ = {};
        visit(std::move(member));
        break;
      }
      default:  // folders, devices and pipes
        pending_attributes_ = {};
        break;
    }
    skip_content(bytes);
    if (offset_ > tar_.size()) fail("ends within a header");
  }

  /// Returns the content of an extended header, which precedes the header of its member.
  std::string read_extended_header(uint64_t bytes) const {
    if (bytes > kMaxTarHeaderBytes || offset_ + bytes > tar_.size()) fail("has a header that is too long");
    return tar_handle_.read(offset_, bytes);
  }

  /// Parses records of the form "LENGTH KEY=VALUE" with a final line break. LENGTH is the size of
  /// the whole record in bytes, including itself and the line break.
  void parse_pax_records(std::string_view records) {
    while (!records.empty()) {
      const size_t space_pos = records.find(' ');
      size_t length = 0;
      // Eight digits cannot overflow and exceed any length within kMaxTarHeaderBytes.
      for (const char digit : records.substr(0, std::min(space_pos, size_t{8}))) {
        if (digit < '0' || digit > '9') fail("has a pax header that is damaged");
        length = length * 10 + static_cast<size_t>(digit - '0');
      }
      if (space_pos == std::string_view::npos || length < space_pos + 3 || length > records.size()) {
        fail("has a pax header that is damaged");
      }
      apply_pax_record(records.substr(space_pos + 1, length - space_pos - 2));
      records.remove_prefix(length);
    }
  }

  void apply_pax_record(std::string_view record) {
    const size_t equals_position = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals_position);
    const std::string_view value = record.substr(std::min(equals_position + 1, record.size()));
    if (key == "path") pending_attributes_.name = std::string(value);
    if (key.starts_with("GNU.sparse.")) pending_attributes_.is_sparse = true;
    if (key != "size") return;
    uint64_t bytes = 0;
    for (const char digit : value) {
      if (digit < '0' || digit > '9' || bytes >> 58U != 0) fail("has a pax header that is damaged");
      bytes = bytes * 10 + static_cast<uint64_t>(digit - '0');
    }
    pending_attributes_.bytes = bytes;
  }

  /// Advances over a content, which is padded to whole blocks.
  void skip_content(uint64_t bytes) { offset_ += (bytes + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes; }

  [[noreturn]] void fail(std::string_view reason) const {
    throw data_error("{}: the tar {} at byte {}: it is damaged or not a tar; create it again", tar_.path().string(),
                     reason, offset_);
  }

  /// Attributes from extended headers for the next member.
  struct PendingAttributes {
    std::optional<std::string> name{};
    std::optional<uint64_t> bytes{};
    bool is_sparse = false;
  };

  const DataFile& tar_;
  DataFile::OpenHandle tar_handle_;
  uint64_t offset_ = 0;
  PendingAttributes pending_attributes_;
};

}  // namespace

void for_each_tar_member(const DataFile& tar, const std::function<void(TarMember)>& visit) {
  TarScanner(tar).visit_members(visit);
}

bool is_tar(std::string_view first_bytes) {
  return first_bytes.size() >= kTarBlockBytes && first_bytes.substr(257, 5) == "ustar";
}

namespace {

using WordList = std::span<const std::string_view>;

constexpr auto kImageFormats = std::to_array<std::string_view>(
    {"jpg",  "jpeg", "jpe",  "jfif", "pjpeg", "pjp", "png", "webp", "gif", "bmp",  "tif",
     "tiff", "avif", "heic", "heif", "jxl",   "jp2", "ppm", "pgm",  "img", "image"});
constexpr auto kVideoFormats =
    std::to_array<std::string_view>({"mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "mpeg", "wmv", "flv", "ts"});
constexpr auto kAudioFormats =
    std::to_array<std::string_view>({"wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "aac", "wma", "aiff"});

/// Words that mark a mask in the file names of image data sets.
constexpr auto kMaskWords = std::to_array<std::string_view>(
    {"mask",        "masks", "seg",    "segs",     "segm",       "segmentation", "segmentations",
     "segmask",     "label", "labels", "labelmap", "annotation", "annotations",  "gt",
     "groundtruth", "matte", "alpha",  "panoptic", "semantic",   "instance",     "instances"});
/// Words that mark an image as derived from another image. Such images are not used, because some
/// show the answer, as overlays do.
constexpr auto kDerivedMediaWords =
    std::to_array<std::string_view>({"thumb", "thumbs", "thumbnail", "thumbnails", "preview", "previews", "overlay",
                                     "overlays", "heatmap", "heatmaps"});

bool is_in_word_list(std::string_view word, WordList words) {
  return std::ranges::find(words, word) != words.end();
}

bool is_all_digits(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns the runs of lowercase letters: "liver" and "mask" for "liver_mask2".
std::vector<std::string_view> split_words(std::string_view name) {
  std::vector<std::string_view> words;
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  for (size_t begin = 0; begin < name.size();) {
    size_t end = begin;
    while (end < name.size() && is_letter(name[end])) ++end;
    if (end > begin) words.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

TarFileKind classify_format(std::string_view format) {
  if (format == "json") return TarFileKind::kJson;
  if (format == "txt") return TarFileKind::kText;
  if (is_in_word_list(format, kImageFormats)) return TarFileKind::kImage;
  if (is_in_word_list(format, kVideoFormats)) return TarFileKind::kVideo;
  return is_in_word_list(format, kAudioFormats) ? TarFileKind::kAudio : TarFileKind::kOther;
}

constexpr std::array kMaskKeys{"mask", "masks"};

std::string get_file_name(const RecordJson& path) {
  const auto& text = path.get_ref<const std::string&>();
  return text.substr(text.rfind('/') + 1);
}

/// Returns the path in a list entry, which is a path or an object with "path". Returns nullptr for
/// other entries.
const RecordJson* find_entry_path(const RecordJson& entry) {
  if (entry.is_string()) return &entry;
  if (!entry.is_object()) return nullptr;
  const auto path = entry.find("path");
  return path != entry.end() && path->is_string() ? &*path : nullptr;
}

/// Returns the value of the first of `keys` that is present, as a list.
RecordJson get_field_as_list(const RecordJson& fields, const std::array<const char*, 2>& keys) {
  const auto key = std::ranges::find_if(keys, [&](const char* name) { return fields.contains(name); });
  if (key == keys.end()) return RecordJson::array();
  const RecordJson& value = fields[*key];
  return value.is_array() ? value : RecordJson::array({value});
}

/// Returns the first of `media` with the file name of `entry`, or the end.
std::vector<RecordJson>::const_iterator find_media_by_file_name(const std::vector<RecordJson>& media,
                                                                const RecordJson& entry) {
  const RecordJson* path = find_entry_path(entry);
  return std::ranges::find_if(media, [&](const RecordJson& media_item) {
    return path != nullptr && get_file_name(media_item["path"]) == get_file_name(*path);
  });
}

bool is_empty_entry(const RecordJson& entry) {
  return entry.is_null() || (entry.is_string() && entry.get_ref<const std::string&>().empty());
}

}  // namespace

std::string to_lower_ascii(std::string_view text) {
  std::string lower_text(text);
  std::ranges::transform(lower_text, lower_text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower_text;
}

TarFileKind classify_tar_extension(std::string_view extension) {
  const std::string lower_text = to_lower_ascii(extension);
  std::string_view name = lower_text;  // is shortened to the part before the format
  TarFileKind kind = TarFileKind::kVolume;
  if (!has_nifti_extension("." + lower_text)) {
    size_t dot = name.rfind('.');
    if (dot != std::string_view::npos && is_all_digits(name.substr(dot + 1))) {
      name = name.substr(0, dot);
      dot = name.rfind('.');
    }
    kind = classify_format(name.substr(dot + 1));
    name = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  } else {
    name = name.substr(0, name.rfind("nii"));
  }
  if (kind != TarFileKind::kImage && kind != TarFileKind::kVolume) return kind;
  const auto words = split_words(name);
  const bool is_mask =
      std::ranges::any_of(words, [](std::string_view word) { return is_in_word_list(word, kMaskWords); });
  if (is_mask) return kind == TarFileKind::kImage ? TarFileKind::kMask : TarFileKind::kDerivedMedia;
  const bool is_derived_media =
      std::ranges::any_of(words, [](std::string_view word) { return is_in_word_list(word, kDerivedMediaWords); });
  return is_derived_media ? TarFileKind::kDerivedMedia : kind;
}

bool is_file_listed(const RecordJson& fields, const std::array<const char*, 2>& keys, const std::string& path) {
  const std::vector<RecordJson> single_media{{{"path", path}}};
  return std::ranges::any_of(get_field_as_list(fields, keys), [&](const RecordJson& entry) {
    return find_media_by_file_name(single_media, entry) != single_media.end();
  });
}

void set_media_field(RecordJson& fields, const std::array<const char*, 2>& keys, std::vector<RecordJson> media) {
  if (media.empty()) return;
  const RecordJson listed_media = get_field_as_list(fields, keys);
  std::vector<RecordJson> sorted_media;
  for (const RecordJson& name : listed_media) {
    if (const auto it = find_media_by_file_name(media, name); it != media.end()) sorted_media.push_back(*it);
  }
  const bool is_full_match = sorted_media.size() == media.size() && listed_media.size() == media.size();
  if (!sorted_media.empty() && !is_full_match) {
    throw data_error("its list \"{}\" names {} of the record's {} files in the tar; name each of them once, or none",
                     fields.contains(keys[0]) ? keys[0] : keys[1], sorted_media.size(), media.size());
  }
  for (const char* key : keys) fields.erase(key);
  fields[keys[1]] = is_full_match ? std::move(sorted_media) : std::move(media);
}

std::vector<std::string> merge_masks(RecordJson& fields, const std::vector<RecordJson>& masks) {
  if (masks.empty()) return {};
  RecordJson entries = get_field_as_list(fields, kMaskKeys);
  if (std::ranges::all_of(entries, is_empty_entry)) {
    for (const char* key : kMaskKeys) fields.erase(key);
    fields[kMaskKeys[1]] = masks;
    return {};
  }
  std::vector<std::string> unused_paths;
  for (const RecordJson& mask : masks) {
    const std::vector<RecordJson> single_media{mask};
    bool is_mask_used = false;
    for (RecordJson& entry : entries) {
      if (find_media_by_file_name(single_media, entry) == single_media.end()) continue;
      if (!entry.is_object()) entry = RecordJson::object();
      entry.update(mask);
      is_mask_used = true;
    }
    if (!is_mask_used) unused_paths.push_back(mask["path"].get<std::string>());
  }
  for (const char* key : kMaskKeys) fields.erase(key);
  fields[kMaskKeys[1]] = std::move(entries);
  return unused_paths;
}

}  // namespace vlmtrain::io
