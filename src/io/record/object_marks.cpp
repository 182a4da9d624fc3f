#include "io/record/object_marks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/record/json_values.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {

namespace {

/// Steps of one search. The default pattern needs some ten steps per bracket of a text.
constexpr uint32_t kMaxSearchSteps = 1'000'000;

Regex compile_pattern(const std::string& pattern) {
  try {
    return Regex(pattern, {.max_steps = kMaxSearchSteps});
  } catch (const RegexError& error) {
    throw usage_error("{}: {} is an invalid regular expression ({}); correct it", keys::data::kBoxesPattern,
                      make_excerpt(pattern), error.what());
  }
}

/// Returns the groups of the coordinates: named groups, else the groups in their order.
std::vector<size_t> find_coordinate_groups(const Regex& pattern) {
  for (const auto& names : {std::vector<const char*>{"x1", "y1", "x2", "y2"}, std::vector<const char*>{"x", "y"}}) {
    std::vector<size_t> groups;
    for (const char* name : names) {
      if (const auto group = pattern.find_group(name)) groups.push_back(*group);
    }
    if (groups.size() == names.size() && groups.size() == pattern.num_named_groups()) return groups;
  }
  if (pattern.num_named_groups() > 0)
    throw usage_error("{}: name its groups x1, y1, x2 and y2, or x and y, or give none a name",
                      keys::data::kBoxesPattern);
  const size_t count = pattern.num_groups();
  if (count == 2) return {1, 2};
  if (count == 4) return {1, 2, 3, 4};
  throw usage_error(
      "{} has {} groups; write one group per number, x1, y1, x2, y2 of a box or x, y of a point, or name them so: "
      "(?<x1>\\d+)",
      keys::data::kBoxesPattern, count);
}

/// Returns the number in `text`. Throws UserError (kBadData) for another text.
double parse_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  throw data_error("{} matches \"{}\" as a coordinate, which is not a number; correct the pattern",
                   keys::data::kBoxesPattern, make_excerpt(text));
}

/// Returns the index of the last image before an offset of a turn: `num_images_before`, the images
/// of earlier turns, and the turn's own `placeholders`.
int64_t find_image_index(int64_t num_images_before, const std::vector<MediaPlaceholder>& placeholders, size_t offset) {
  const auto num_images = std::ranges::count_if(
      placeholders, [&](const MediaPlaceholder& medium) { return !medium.is_video && medium.begin < offset; });
  return std::max<int64_t>(num_images_before + num_images - 1, 0);
}

}  // namespace

BoxTextFinder::BoxTextFinder(const BoxSettings& settings) : unit_(settings.unit) {
  if (!unit_) {
    if (settings.pattern.empty()) return;
    throw usage_error("{} needs {}, the unit of the coordinates: absolute, normalized_1 or normalized_1000",
                      keys::data::kBoxesPattern, keys::data::kBoxesIn);
  }
  pattern_ = compile_pattern(settings.pattern.empty() ? kDefaultBoxPattern : settings.pattern);
  groups_ = find_coordinate_groups(*pattern_);
}

void BoxTextFinder::add_objects(Record& record) const {
  if (!pattern_ || (record.images.empty() && record.videos.empty())) return;
  const auto search = [&](std::string_view text, size_t offset) {
    try {
      return pattern_->search(text, offset);
    } catch (const RegexError& error) {
      throw data_error("{} takes too long on its text {} ({}); simplify the pattern", keys::data::kBoxesPattern,
                       make_excerpt(text), error.what());
    }
  };
  int64_t num_images = 0;
  for (size_t turn = 0; turn < record.turns.size(); ++turn) {
    const Turn& current = record.turns[turn];
    const std::vector<MediaPlaceholder> placeholders = find_placeholders(current);
    size_t end = 0;
    for (auto match = search(current.text, end); match; match = search(current.text, end)) {
      const Regex::Group whole = *match->front();
      end = std::max(whole.end, end + 1);
      if (record.images.empty()) {
        throw data_error("turn {} has coordinates of a video, which are not supported; unset {}", turn + 1,
                         keys::data::kBoxesIn);
      }
      ObjectMark object{.turn_index = turn,
                        .range = {.begin = whole.begin, .end = whole.end},
                        .unit = *unit_,
                        .image_index = find_image_index(num_images, placeholders, whole.begin)};
      for (const size_t group : groups_) {
        if (!(*match)[group]) continue;
        const auto [begin, group_end] = *(*match)[group];
        if (begin < whole.begin || group_end > whole.end) {
          throw data_error("{} has a group outside of its match, at \"{}\"; write no groups into lookarounds",
                           keys::data::kBoxesPattern,
                           make_excerpt(std::string_view(current.text).substr(begin, group_end - begin)));
        }
        object.coordinates.push_back(parse_number(std::string_view(current.text).substr(begin, group_end - begin)));
        object.number_ranges.push_back({.begin = begin, .end = group_end});
      }
      if (object.coordinates.size() != groups_.size()) {
        throw data_error("{} matches {} without all of its groups; correct the pattern", keys::data::kBoxesPattern,
                         make_excerpt(std::string_view(current.text).substr(whole.begin, whole.end - whole.begin)));
      }
      record.objects.push_back(std::move(object));
      if (end > current.text.size()) break;
    }
    for (const TemplateValue& field : current.fields) {
      if (!search(field.json, 0)) continue;
      throw data_error(
          "turn {} has coordinates in \"{}\", where they are not rewritten; unset {} to train on the numbers as they "
          "are",
          turn + 1, field.name, keys::data::kBoxesIn);
    }
    num_images += std::ranges::count(placeholders, false, &MediaPlaceholder::is_video);
  }
}

namespace {

/// The names and boxes that a record lists.
struct ListedObjects {
  std::vector<std::string> names;
  std::vector<std::vector<double>> boxes;
  CoordinateUnit unit = CoordinateUnit::kAbsolute;
  std::vector<int64_t> image_indices;  ///< of the boxes; empty: the first image
};

/// Returns the numbers of a box or a point. `index` counts from 0, for messages.
std::vector<double> parse_coordinates(const RecordJson& value, size_t index) {
  const bool is_list =
      value.is_array() && std::ranges::all_of(value, [](const RecordJson& number) { return number.is_number(); });
  if (!is_list || (value.size() != 2 && value.size() != 4)) {
    throw data_error("its box {} is {}; write [x1, y1, x2, y2], or [x, y] for a point", index + 1,
                     make_value_excerpt(value));
  }
  return value.get<std::vector<double>>();
}

std::vector<std::vector<double>> parse_boxes(const RecordJson& value) {
  if (!value.is_array()) throw data_error("its boxes are {}; write a list of them", make_value_excerpt(value));
  std::vector<std::vector<double>> boxes;
  if (value.front().is_number()) {
    boxes.push_back(parse_coordinates(value, 0));
    return boxes;
  }
  for (size_t i = 0; i < value.size(); ++i) boxes.push_back(parse_coordinates(value[i], i));
  return boxes;
}

CoordinateUnit parse_unit(const RecordJson& value) {
  static constexpr std::pair<const char*, CoordinateUnit> kUnits[]{
      {"real", CoordinateUnit::kAbsolute},           {"absolute", CoordinateUnit::kAbsolute},
      {"norm1", CoordinateUnit::kNormalized1},       {"normalized_1", CoordinateUnit::kNormalized1},
      {"norm1000", CoordinateUnit::kNormalized1000}, {"normalized_1000", CoordinateUnit::kNormalized1000}};
  const auto* const unit = std::ranges::find_if(kUnits, [&](const auto& entry) { return value == entry.first; });
  if (unit != std::end(kUnits)) return unit->second;
  throw data_error("its \"bbox_type\" is {}; write \"real\" (pixels), \"norm1\" (0 to 1) or \"norm1000\" (0 to 1000)",
                   make_value_excerpt(value));
}

std::vector<std::string> parse_names(const RecordJson& value) {
  std::vector<std::string> names;
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) throw data_error("its \"ref\" is {}; write a list of names", make_value_excerpt(value));
  for (const RecordJson& name : value) {
    if (!name.is_string()) throw data_error("its \"ref\" has the entry {}; write names", make_value_excerpt(name));
    names.push_back(name.get<std::string>());
  }
  return names;
}

/// Returns one image index per box. `value` is an index for all boxes, or a list.
std::vector<int64_t> parse_image_indices(const RecordJson& value, size_t num_boxes) {
  const auto is_index = [](const RecordJson& entry) { return entry.is_number_integer(); };
  if (is_index(value)) return std::vector<int64_t>(num_boxes, value.get<int64_t>());
  if (value.is_array() && value.size() == num_boxes && std::ranges::all_of(value, is_index)) return value;
  throw data_error("its \"image_id\" is {}; write the index of an image, from 0, for each box",
                   make_value_excerpt(value));
}

/// Returns the key of a record that lists boxes; nothing if there is none. Throws data_error if there
/// are several.
std::optional<std::string> find_box_key(const RecordJson& record) {
  std::optional<std::string> found_key;
  for (const char* key : {"objects", "bbox", "bboxes", "boxes"}) {
    if (find_non_blank_value(record, key) == nullptr) continue;
    if (found_key) {
      throw data_error("it has boxes under \"{}\" and \"{}\"; keep one, or set {}=[{}]", *found_key, key,
                       keys::data::kIgnoreKeys, key);
    }
    found_key = key;
  }
  return found_key;
}

void check_object_keys(const RecordJson& objects) {
  if (!objects.is_object()) {
    throw data_error("its \"objects\" is {}; write {{\"ref\": names, \"bbox\": boxes}}", make_value_excerpt(objects));
  }
  for (auto entry = objects.begin(); entry != objects.end(); ++entry) {
    constexpr std::array kKeys =
        std::to_array<std::string_view>({"ref", "bbox", "bbox_type", "image_id", "width", "height"});
    if (is_blank(*entry) || std::ranges::find(kKeys, entry.key()) != kKeys.end()) continue;
    throw data_error(
        "its \"objects\" has \"{}\", which is not read; \"ref\", \"bbox\", \"bbox_type\" and \"image_id\" are",
        make_excerpt(entry.key()));
  }
}

ListedObjects parse_listed_objects(const RecordJson& record, const std::string& key,
                                   std::optional<CoordinateUnit> default_unit) {
  ListedObjects listed{
      .names = {}, .boxes = {}, .unit = default_unit.value_or(CoordinateUnit::kAbsolute), .image_indices = {}};
  const RecordJson& content = record[key];
  if (key != "objects") {
    listed.boxes = parse_boxes(content);
    if (const RecordJson* unit = find_non_blank_value(record, "bbox_type")) listed.unit = parse_unit(*unit);
    return listed;
  }
  check_object_keys(content);
  if (const RecordJson* names = find_non_blank_value(content, "ref")) listed.names = parse_names(*names);
  if (const RecordJson* boxes = find_non_blank_value(content, "bbox")) listed.boxes = parse_boxes(*boxes);
  if (const RecordJson* unit = find_non_blank_value(content, "bbox_type")) listed.unit = parse_unit(*unit);
  if (const RecordJson* images = find_non_blank_value(content, "image_id"))
    listed.image_indices = parse_image_indices(*images, listed.boxes.size());
  return listed;
}

/// Returns the marks of one kind, in order.
std::vector<ObjectMark> find_marks(const std::vector<Turn>& turns, std::string_view mark) {
  std::vector<ObjectMark> marks;
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    const std::string& text = turns[turn].text;
    for (size_t pos = text.find(mark); pos != std::string::npos; pos = text.find(mark, pos + mark.size())) {
      marks.push_back({.turn_index = turn, .range = {.begin = pos, .end = pos + mark.size()}});
    }
  }
  return marks;
}

void check_count(size_t num_listed, size_t num_marks, std::string_view nouns, std::string_view mark) {
  if (num_listed == num_marks) return;
  throw data_error(
      "its text has {} marks {} for {} {} in \"objects\"; write one mark for each, or set {}=[objects] to learn the "
      "marks as text",
      num_marks, mark, num_listed, nouns, keys::data::kIgnoreKeys);
}

/// Returns a field of a turn, such as tool calls, that has a mark; nullptr if none has.
const TemplateValue* find_field_with_mark(const std::vector<Turn>& turns) {
  for (const Turn& turn : turns) {
    for (const TemplateValue& field : turn.fields) {
      for (const std::string_view mark : {kBoxMark, kNameMark}) {
        if (field.json.find(mark) != std::string::npos) return &field;
      }
    }
  }
  return nullptr;
}

/// Adds the marks that stand for the listed objects. Marks of a record without boxes and names are
/// text.
void add_listed_objects(const RecordJson& record_json, std::optional<CoordinateUnit> default_unit, Record& record) {
  std::vector<ObjectMark> box_marks = find_marks(record.turns, kBoxMark);
  std::vector<ObjectMark> name_marks = find_marks(record.turns, kNameMark);
  const TemplateValue* const field = find_field_with_mark(record.turns);
  if (box_marks.empty() && name_marks.empty() && field == nullptr) return;
  const std::optional<std::string> key = find_box_key(record_json);
  if (!key) return;
  if (field != nullptr) {
    throw data_error(
        "it has a mark such as {} in \"{}\", where marks are not replaced; write the numbers, or set {}=[{}] to learn "
        "the mark",
        kBoxMark, field->name, keys::data::kIgnoreKeys, *key);
  }
  ListedObjects listed = parse_listed_objects(record_json, *key, default_unit);
  check_count(listed.boxes.size(), box_marks.size(), "boxes", kBoxMark);
  check_count(listed.names.size(), name_marks.size(), "names", kNameMark);
  for (size_t i = 0; i < name_marks.size(); ++i) {
    name_marks[i].name = std::move(listed.names[i]);
    record.objects.push_back(std::move(name_marks[i]));
  }
  for (size_t i = 0; i < box_marks.size(); ++i) {
    box_marks[i].coordinates = std::move(listed.boxes[i]);
    box_marks[i].unit = listed.unit;
    if (!listed.image_indices.empty()) box_marks[i].image_index = listed.image_indices[i];
    record.objects.push_back(std::move(box_marks[i]));
  }
}

void check_object(const ObjectMark& object, const Record& record) {
  if (object.is_name()) return;
  if (object.image_index < 0 || object.image_index >= std::ssize(record.images)) {
    throw data_error(
        "it has a box of image {}, but {}; image indices begin with 0, and boxes on videos are not supported",
        object.image_index, pluralize(std::ssize(record.images), "image"));
  }
  const std::vector<double>& values = object.coordinates;
  const auto is_fraction = [](double value) { return value >= 0 && value <= 1; };
  const bool has_decimals = std::ranges::any_of(values, [](double value) { return value != std::floor(value); });
  if (object.unit == CoordinateUnit::kAbsolute && has_decimals && std::ranges::all_of(values, is_fraction)) {
    throw data_error(
        "its box [{}] is within one pixel and seems to be in fractions of the image; set \"bbox_type\": \"norm1\", or "
        "{}=normalized_1",
        fmt::join(values, ", "), keys::data::kBoxesIn);
  }
  if (values.size() == 4 && (values[2] < values[0] || values[3] < values[1])) {
    throw data_error(
        "its box [{}, {}, {}, {}] ends before it begins; write [x1, y1, x2, y2], not [x, y, width, height]", values[0],
        values[1], values[2], values[3]);
  }
}

}  // namespace

void add_objects_to_hash(ContentHash& hash, std::span<const ObjectMark> objects) {
  for (const ObjectMark& object : objects) {
    hash.add(object.turn_index).add(object.range.begin).add(object.range.end).add(object.name);
    hash.add(static_cast<uint64_t>(object.unit)).add(static_cast<uint64_t>(object.image_index));
    for (const double value : object.coordinates) hash.add(std::bit_cast<uint64_t>(value));
  }
}

void set_object_marks(const RecordJson& record_json, const BoxTextFinder& boxes, Record& record) {
  add_listed_objects(record_json, boxes.unit(), record);
  boxes.add_objects(record);
  for (const ObjectMark& object : record.objects) check_object(object, record);
  std::ranges::sort(record.objects, {},
                    [](const ObjectMark& object) { return std::pair(object.turn_index, object.range.begin); });
}

}  // namespace vlmtrain::io
