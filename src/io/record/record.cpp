#include "vlmtrain/io/record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

namespace {

// Format of a compressed count (rleToString of pycocotools' maskApi.c). A character minus
// kFirstRleCharacter has five bits of the count, and a sixth bit that is set if more characters
// follow. The highest of the five bits of the last character is the sign.
constexpr char kFirstRleCharacter = '0', kLastRleCharacter = 'o';
constexpr int kBitsPerGroup = 5;
constexpr int64_t kGroupMask = 0x1F, kContinueBit = 0x20, kSignBit = 0x10;
/// Maximum number of characters of a count: differences of counts have at most 30 bits with sign,
/// so 6 are needed.
constexpr int kMaxGroupsPerCount = 7;

/// Returns the count that begins at `pos` and advances `pos` to its end.
int64_t read_compressed_count(std::string_view text, size_t& pos) {
  int64_t value = 0;
  for (int group = 0; group < kMaxGroupsPerCount; ++group) {
    if (pos == text.size()) {
      throw data_error("a mask's compressed counts end within a count: they are truncated; write them again");
    }
    const char character = text[pos++];
    if (character < kFirstRleCharacter || character > kLastRleCharacter) {
      throw data_error(
          "a mask's compressed counts have the invalid character \"{}\" at position {} ('0' to 'o' are valid); write "
          "them with pycocotools (mask.encode, then .decode(\"ascii\"))",
          make_excerpt(std::string(1, character)), pos);
    }
    const int64_t bits = character - kFirstRleCharacter;
    value |= (bits & kGroupMask) << (kBitsPerGroup * group);
    if ((bits & kContinueBit) != 0) continue;
    if ((bits & kSignBit) != 0) value -= int64_t{1} << (kBitsPerGroup * (group + 1));
    return value;
  }
  throw data_error(
      "a mask's compressed counts have a count of more than {} characters before position {}; write them again",
      kMaxGroupsPerCount, pos + 1);
}

/// Throws data_error unless 0 <= count <= kMaxMaskPixels. With this limit, sums of counts cannot
/// overflow. `number` is the number of the run, from 1.
void check_run_length(int64_t count, size_t number) {
  if (count < 0) {
    throw data_error("a mask's run {} has the negative length {}; write its counts again", number, count);
  }
  if (count > kMaxMaskPixels) {
    throw data_error("a mask's run {} has {} pixels, more than the limit of {}; shrink the mask", number, count,
                     kMaxMaskPixels);
  }
}

std::vector<int64_t> parse_compressed_counts(std::string_view text) {
  std::vector<int64_t> counts;
  for (size_t pos = 0; pos < text.size();) {
    int64_t count = read_compressed_count(text, pos);
    // From the fourth count on, the difference to the count two positions earlier is stored.
    if (counts.size() > 2) count += counts[counts.size() - 2];
    check_run_length(count, counts.size() + 1);
    counts.push_back(count);
  }
  return counts;
}

std::vector<int64_t> parse_count_list(const RecordJson& list) {
  std::vector<int64_t> counts;
  counts.reserve(list.size());
  for (const auto& value : list) {
    if (!value.is_number_integer()) {
      throw data_error("a mask's \"counts\" have {}, which is not a whole number; write its counts again",
                       make_json_excerpt(value));
    }
    const bool exceeds_max_pixels = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kMaxMaskPixels};
    counts.push_back(exceeds_max_pixels ? kMaxMaskPixels + 1 : value.get<int64_t>());
    check_run_length(counts.back(), counts.size());
  }
  return counts;
}

/// Returns the height or width of a mask, limited to kMaxMaskPixels + 1, so that products do not
/// overflow.
int64_t parse_side_length(const RecordJson& value) {
  const bool is_negative = !value.is_number_unsigned() && value.is_number_integer() && value.get<int64_t>() < 0;
  if (!value.is_number_integer() || is_negative || value.get<uint64_t>() == 0) {
    throw data_error("a mask's \"size\" has {}; the height and width are whole numbers of at least 1",
                     make_json_excerpt(value));
  }
  return static_cast<int64_t>(std::min(value.get<uint64_t>(), uint64_t{kMaxMaskPixels} + 1));
}

/// Returns a mask without counts, with the "size" of `value`. Throws data_error if it is invalid.
Rle parse_rle_without_counts(const RecordJson& value) {
  const auto size = value.find("size");
  if (size == value.end() || !size->is_array() || size->size() != 2) {
    throw data_error("a mask's run lengths have no \"size\"; add [height, width] of the image");
  }
  Rle rle{.height = parse_side_length((*size)[0]), .width = parse_side_length((*size)[1]), .counts = {}};
  if (rle.height > kMaxMaskPixels / rle.width) {
    throw data_error("a mask of {} x {} pixels exceeds the limit of {}; shrink it and its image",
                     make_json_excerpt((*size)[1]), make_json_excerpt((*size)[0]), kMaxMaskPixels);
  }
  return rle;
}

}  // namespace

Rle parse_rle(const RecordJson& value) {
  if (value.is_array()) {
    throw data_error(
        "a mask is a list, as COCO polygons are; convert it to run lengths with pycocotools (mask.frPyObjects, then "
        "mask.merge)");
  }
  if (!value.is_object()) {
    throw data_error("a mask's run lengths are not a JSON object; write them as {{\"size\": …, \"counts\": …}}");
  }
  Rle rle = parse_rle_without_counts(value);
  const auto counts = value.find("counts");
  if (counts != value.end() && counts->is_array()) {
    rle.counts = parse_count_list(*counts);
  } else if (counts != value.end() && counts->is_string()) {
    rle.counts = parse_compressed_counts(counts->get_ref<const std::string&>());
  } else if (counts != value.end() && counts->is_binary()) {
    // pycocotools returns bytes, which Parquet stores without conversion.
    const auto& bytes = counts->get_binary();
    rle.counts = parse_compressed_counts(std::string(bytes.begin(), bytes.end()));
  } else {
    throw data_error("a mask's run lengths have no \"counts\", a list of numbers or pycocotools' string; add them");
  }
  int64_t total_pixels = 0;
  for (const int64_t count : rle.counts) total_pixels += count;
  if (const int64_t pixels = rle.height * rle.width; total_pixels != pixels) {
    throw data_error(
        "a mask's run lengths {} {} pixels, but its size of {} x {} (width x height) has {}; check that \"size\" is "
        "[height, width] of the image, or write them again",
        total_pixels < pixels ? "fill only" : "fill", total_pixels, rle.width, rle.height, pixels);
  }
  return rle;
}

std::string encode_rle_counts(const Rle& rle) {
  std::string text;
  for (size_t i = 0; i < rle.counts.size(); ++i) {
    int64_t remaining = i > 2 ? rle.counts[i] - rle.counts[i - 2] : rle.counts[i];
    for (bool has_more = true; has_more;) {
      const int64_t group = remaining & kGroupMask;
      remaining >>= kBitsPerGroup;
      has_more = remaining != ((group & kSignBit) != 0 ? -1 : 0);
      text += static_cast<char>(kFirstRleCharacter + (has_more ? group | kContinueBit : group));
    }
  }
  return text;
}

std::vector<MediaPlaceholder> find_placeholders(const Turn& turn) {
  static_assert(kImagePlaceholder.size() == kVideoPlaceholder.size());
  const std::string_view text = turn.text;
  std::vector<MediaPlaceholder> placeholders;
  for (size_t pos = text.find('<'); pos != std::string_view::npos; pos = text.find('<', pos + 1)) {
    const std::string_view candidate = text.substr(pos, kImagePlaceholder.size());
    const bool is_placeholder = candidate == kImagePlaceholder || candidate == kVideoPlaceholder;
    if (!is_placeholder || std::ranges::binary_search(turn.literal_placeholder_offsets, pos)) continue;
    placeholders.push_back({.begin = pos, .is_video = candidate == kVideoPlaceholder});
  }
  return placeholders;
}

int64_t count_text_windows(int64_t tokens, int64_t window_tokens) {
  VLMTRAIN_CHECK(window_tokens >= 2, "windows of {} tokens", window_tokens);
  const int64_t step = window_tokens - 1;  // consecutive windows share one token
  return tokens <= window_tokens ? 1 : 1 + (tokens - window_tokens + step - 1) / step;
}

bool has_answer_fields(const Turn& turn) {
  return turn.role == Role::kAssistant && std::ranges::any_of(turn.fields, [](const TemplateValue& field) {
           return field.name != "name" && field.name != "tool_call_id";
         });
}

const std::shared_ptr<const std::string>& get_omitted_bytes_marker() {
  static const auto bytes = std::make_shared<const std::string>();
  return bytes;
}

const std::string& get_media_bytes(const MediaRef& media_ref) {
  VLMTRAIN_CHECK(media_ref.bytes != nullptr && media_ref.bytes != get_omitted_bytes_marker(),
                 "{}: its record was read without bytes", media_ref.path);
  return *media_ref.bytes;
}

std::string describe_problem(const Record& record) {
  const bool has_fix = record.problem.find(';') != std::string::npos;
  return has_fix ? record.problem : record.problem + "; correct the record";
}

std::string describe_volume(const Record& record, size_t index) {
  const auto begin = record.images.begin(), target = begin + static_cast<std::ptrdiff_t>(index);
  const auto volume_index =
      static_cast<size_t>(std::count_if(begin, target, [](const auto& image) { return image.is_volume; }));
  const auto num_volumes = static_cast<size_t>(std::ranges::count(record.images, true, &MediaRef::is_volume));
  // If the numbers of subjects and volumes are equal, the n-th subject belongs to the n-th volume.
  // Otherwise all subjects apply to all volumes.
  std::string name = record.images[index].modality;
  const std::string subject_id = record.subject_ids.size() == num_volumes
                                     ? record.subject_ids[volume_index]
                                     : fmt::format("{}", fmt::join(record.subject_ids, ", "));
  if (!name.empty() && !subject_id.empty()) name += ", ";
  return name += subject_id;
}

std::vector<MediaRef*> detect_volumes(Record& record) {
  std::vector<MediaRef*> volumes;
  for (MediaRef& media_ref : record.images) {
    media_ref.is_volume |= has_nifti_extension(media_ref.path);
    if (media_ref.is_volume) volumes.push_back(&media_ref);
  }
  return volumes;
}

bool try_assign_modalities(std::span<MediaRef* const> volumes, std::span<const std::string> modalities) {
  if (modalities.size() != 1 && modalities.size() != volumes.size()) return false;
  for (size_t i = 0; i < volumes.size(); ++i) volumes[i]->modality = modalities[modalities.size() == 1 ? 0 : i];
  return true;
}

}  // namespace vlmtrain::io
