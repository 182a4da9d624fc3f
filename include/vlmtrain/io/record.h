#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/hash.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// A run-length encoded mask in COCO's format (https://cocodataset.org/#format-data; pycocotools'
/// maskApi).
struct Rle {
  int64_t height;
  int64_t width;
  /// Lengths of alternating runs of pixels, in column-major order: the first run is outside of the
  /// mask, the second inside. Their sum is height × width. pycocotools writes 0 only as the first
  /// count, for a mask that contains the first pixel.
  std::vector<int64_t> counts;

  bool operator==(const Rle&) const = default;
};

/// Largest number of pixels of a mask, equal to image::kMaxImagePixels.
inline constexpr int64_t kMaxMaskPixels = 178'956'970;

/// Parses {"size": [height, width], "counts": COUNTS}. COUNTS is a list of numbers, or pycocotools'
/// compressed string as text or bytes. Throws data_error, whose message begins with "a mask", if a
/// field is malformed, the mask has more than kMaxMaskPixels, or the runs do not fill it exactly.
Rle parse_rle(const RecordJson& value);

/// Returns the counts in pycocotools' compressed string format (rleToString of maskApi.c). From the
/// fourth count on, the difference to the count two positions earlier is written. A number is split
/// into groups of five bits, lowest first, and each group becomes one character from '0' to 'o'.
/// REQUIRES: counts are valid as in parse_rle().
std::string encode_rle_counts(const Rle& rle);

/// The unit of the coordinates of boxes and points. The origin is the upper left corner of the
/// image; x grows to the right and y downwards.
enum class CoordinateUnit {
  kAbsolute,        ///< pixels of the original image
  kNormalized1,     ///< fractions of the image's width and height, 0 to 1
  kNormalized1000,  ///< thousandths of the image's width and height, 0 to 1000
};

/// A range of bytes [begin, end) of a turn's text.
struct TextRange {
  size_t begin;
  size_t end;

  bool operator==(const TextRange&) const = default;
};

/// A part of a turn's text that the processor replaces: the name of an object, a box or a point.
struct ObjectMark {
  size_t turn_index = 0;
  TextRange range{};   ///< of the text of that turn
  std::string name{};  ///< the name that replaces a mark <ref-object>; empty for boxes and points
  /// x and y of a point, or x1, y1, x2, y2 of a box with x1 <= x2 and y1 <= y2; empty for names.
  std::vector<double> coordinates{};
  CoordinateUnit unit = CoordinateUnit::kAbsolute;
  int64_t image_index = 0;  ///< index of the image in Record::images
  /// The ranges of the numbers within the turn's text, in the order of `coordinates`. Only these are
  /// replaced. Empty: the whole mark is replaced by the family's text of a box.
  std::vector<TextRange> number_ranges{};

  bool is_name() const { return coordinates.empty(); }
  bool operator==(const ObjectMark&) const = default;
};

/// Adds all values of the marks to a hash; nothing if there are none.
void add_objects_to_hash(ContentHash& hash, std::span<const ObjectMark> objects);

/// How coordinates are written in a data set.
struct BoxSettings {
  /// Unit of coordinates in texts, and of boxes whose record does not name their unit
  /// (data.boxes.in). Empty: texts are not searched, and those boxes are in pixels.
  std::optional<CoordinateUnit> unit{};
  /// Regular expression (PCRE2) with a group for each number: x1, y1, x2, y2 of a box or x, y of a
  /// point, in this order or with these names (data.boxes.pattern). Empty: kDefaultBoxPattern.
  std::string pattern{};

  bool operator==(const BoxSettings&) const = default;
};

/// Matches boxes such as [10, 20, 30, 40], also in JSON, and (10,20),(30,40). Points need a pattern
/// of their own, because lists of two numbers are common in other texts.
inline constexpr const char* kDefaultBoxPattern =
    R"((?|\[\s*(-?\d+(?:\.\d+)?)\s*,\s*(-?\d+(?:\.\d+)?)\s*,\s*(-?\d+(?:\.\d+)?)\s*,\s*(-?\d+(?:\.\d+)?)\s*\])"
    R"(|\(\s*(-?\d+(?:\.\d+)?)\s*,\s*(-?\d+(?:\.\d+)?)\s*\)\s*,\s*\(\s*(-?\d+(?:\.\d+)?)\s*,\s*(-?\d+(?:\.\d+)?)\s*\)))";

/// Speaker of a turn. A turn of kTool is the output of a tool. A turn of kDocument is the text of a
/// document: the only turn of its record, without a speaker and without a chat template.
enum class Role { kSystem, kUser, kAssistant, kTool, kDocument };

/// Placeholders of an image and a video in the text of a turn, as in LLaVA's data.
inline constexpr std::string_view kImagePlaceholder = "<image>";
inline constexpr std::string_view kVideoPlaceholder = "<video>";

/// A value of a record that its chat template may read: a field of a message, such as "tool_calls",
/// or a variable, such as "tools".
struct TemplateValue {
  std::string name;
  std::string json;  ///< JSON text with the record's order of keys

  bool operator==(const TemplateValue&) const = default;
};

/// One turn of a conversation. The n-th image placeholder of a conversation stands for its n-th
/// image, and the n-th video placeholder for its n-th video. Placeholders at
/// `literal_placeholder_offsets` are plain text and do not count.
struct Turn {
  Role role;
  std::string text;
  std::vector<size_t> literal_placeholder_offsets = {};  ///< byte offsets in `text`, ascending
  std::vector<TemplateValue> fields = {};                ///< fields of the message besides role and content
  bool has_content = true;                               ///< false: the content is null, as next to tool calls
  float loss_weight = 1;                                 ///< weight of an answer's tokens in the loss, 0 to 1
};

/// Returns whether a field of `turn` has a text of the answer: tool calls or reasoning.
bool has_answer_fields(const Turn& turn);

/// A placeholder in the text of a turn.
struct MediaPlaceholder {
  size_t begin;   ///< byte offset of kImagePlaceholder or kVideoPlaceholder, which have the same length
  bool is_video;  ///< false: an image or a volume

  bool operator==(const MediaPlaceholder&) const = default;
};

/// Returns the placeholders of `turn` that stand for media, in the order of the text. Literal
/// placeholders are omitted.
std::vector<MediaPlaceholder> find_placeholders(const Turn& turn);

/// A reference to an image, a video or a volume of a record: a file, bytes in the data set, or the
/// frames of a video. The path of a video may be a folder of frames.
struct MediaRef {
  MediaRef() = default;
  // Implicit, because a path is a reference: NOLINTBEGIN(google-explicit-constructor)
  MediaRef(std::string file) : path(std::move(file)) {}
  MediaRef(const char* file) : path(file) {}
  MediaRef(const std::filesystem::path& file) : path(file.string()) {}
  // NOLINTEND(google-explicit-constructor)

  std::string path;                               ///< path of the file; with `bytes`, a name for messages
  std::shared_ptr<const std::string> bytes = {};  ///< encoded content; null if the content is in the file
  std::vector<MediaRef> frames = {};  ///< frames of a video that is a list of images; `path` is the first one's path
  double fps = 0;                     ///< frame rate of `frames` or of a folder of frames, in Hz; 0 if unknown
  bool is_volume = false;             ///< true for a NIfTI volume
  std::string modality = {};          ///< modality of a volume, such as "T1w"; empty if unknown

  bool operator==(const MediaRef&) const = default;
};

/// Returns the value of `bytes` in records of Records::at_without_media_bytes(): an empty string
/// that stands for content that was not read.
const std::shared_ptr<const std::string>& get_omitted_bytes_marker();

/// Returns the content of a reference with bytes. REQUIRES: `bytes` is neither null nor
/// get_omitted_bytes_marker().
const std::string& get_media_bytes(const MediaRef& media_ref);

/// A mask of one of a record's images: a file, bytes, or a COCO run-length encoding.
struct MaskSource {
  MediaRef file{};  ///< mask image, used if `rle` is empty
  std::optional<Rle> rle{};
  std::optional<int64_t> value{};  ///< pixel value of the mask in `file`; if empty, all values except 0
  std::string structure{};         ///< name of the segmented structure, by which scores are grouped; may be empty
  int64_t image_index = 0;         ///< index of the image in Record::images

  bool operator==(const MaskSource&) const = default;
};

/// A remark about data of a record that is not used and does not change the sample. Unused data
/// that would change what is learned is the record's `problem` instead.
struct Notice {
  std::string kind;     ///< a fixed phrase by which notices are counted, such as `key "source" of a record`
  std::string example;  ///< an excerpt of the value in this record; may be empty

  bool operator==(const Notice&) const = default;
};

/// A window of a long text, which is a sample of its own (data.text_window_tokens). Window n has
/// the tokens of the document from n · (tokens - 1) on, so that its first token is the last one of
/// the window before. That token is the context of the window and is not learned again.
struct TextWindow {
  int64_t index = 0;   ///< from 0
  int64_t tokens = 0;  ///< maximum number of tokens of a window; >= 2

  /// Returns the index of its first token in the document.
  int64_t first_token() const { return index * (tokens - 1); }
  bool operator==(const TextWindow&) const = default;
};

/// Returns the number of windows of at most `window_tokens` tokens of a document of `tokens`
/// tokens; at least 1.
int64_t count_text_windows(int64_t tokens, int64_t window_tokens);

/// One record of a data set, in the same form for all formats.
struct Record {
  std::string id;           ///< "id" in the data (string or integer), else "<file stem>:<index from 0>"
  std::string task;         ///< first string of "task", "task_type", "kind", "category" and "answer_type"; may be empty
  std::string answer_type;  ///< "answer_type" in the data, such as OPEN or CLOSED in medical VQA; may be empty
  /// An optional system turn, then alternating turns of user and assistant. Turns of tools follow an
  /// assistant's turn that calls them, and precede another one. A document has one turn of
  /// kDocument instead. The numbers of image and video placeholders equal the sizes of `images` and
  /// `videos`.
  std::vector<Turn> turns;
  std::vector<TemplateValue> template_variables;  ///< "tools" and "chat_template_kwargs"
  std::vector<MediaRef> images;                   ///< images and volumes
  std::vector<MediaRef> videos;
  std::vector<ObjectMark> objects;       ///< names and boxes in the turns, in the order of the text
  std::vector<MaskSource> masks;         ///< in the order of the mask tokens in the answers
  std::string mask_problem;              ///< why `masks` cannot be used, else empty; only segmentation models report it
  std::vector<std::string> subject_ids;  ///< one per volume, or for all volumes together ("subject_id"); may be empty
  std::vector<Notice> notices;           ///< at most one of each kind
  std::string location;                  ///< position in the data set for messages, such as "line 17"
  std::string problem;                   ///< why the record cannot be used, a phrase or sentence; empty if usable
  std::optional<TextWindow> window{};    ///< the part of a document that the sample has; empty: all of it

  /// Returns whether the record is a document, not a conversation.
  bool is_document() const { return !turns.empty() && turns.front().role == Role::kDocument; }
};

/// Names of columns that RecordSettings::columns can map.
inline constexpr std::array<std::string_view, 20> kRenamableColumns{
    "id",     "task",  "system", "messages", "question", "answer", "caption", "text",     "document",   "image",
    "images", "video", "videos", "mask",     "masks",    "volume", "volumes", "modality", "subject_id", "objects"};

/// Settings for reading the records of a data set.
struct RecordSettings {
  /// Base folder of relative media paths. If empty, the folder of the data file.
  std::optional<std::filesystem::path> image_root = std::nullopt;
  /// Names of the data set's columns by their name in kRenamableColumns (data.columns).
  std::map<std::string, std::string> columns{};
  /// Keys of records, turns and content blocks that are removed before a record is read
  /// (data.ignore_keys).
  std::vector<std::string> ignore_keys{};
  BoxSettings boxes{};  ///< how coordinates are written in the data
  /// Makes a media path outside of `image_root`, also through ".." or a link, a problem of its
  /// record.
  bool restrict_to_image_root = false;
};

/// Returns the problem of a record and its fix: "turn 2 is empty; correct the record". REQUIRES:
/// record.problem is not empty.
std::string describe_problem(const Record& record);

/// Returns a caption of the volume `record.images[index]`: its modality and subject, such as "T1w,
/// sub-01", or "" if both are unknown. REQUIRES: record.images[index].is_volume.
std::string describe_volume(const Record& record, size_t index);

/// Returns pointers to the volumes in `record.images`, valid as long as that vector is unchanged.
/// Sets `is_volume` of images with the extension of a NIfTI file.
std::vector<MediaRef*> detect_volumes(Record& record);

/// Sets the modalities of volumes: `modalities` has one entry for all volumes, or one per volume.
/// Returns false and changes nothing for other numbers of entries.
bool try_assign_modalities(std::span<MediaRef* const> volumes, std::span<const std::string> modalities);

}  // namespace vlmtrain::io
