#include "models/processing/object_writer.h"

#include <fmt/args.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/sample/sample_processor.h"

namespace vlmtrain::models {

namespace {

using image::Box;
using image::ImageSize;
using image::Point;

/// Returns the text of a coordinate, a position of 0 to `length` pixels. `length`: the width of the
/// image for x, its height for y.
std::string format_coordinate(double position, double length, CoordinateNotation notation) {
  constexpr double kNumLocations = 1024;  // <loc0000> to <loc1023>
  switch (notation) {
    case CoordinateNotation::kAbsolute:
      return fmt::format("{}", std::llround(position));
    case CoordinateNotation::kNormalized1:
      return fmt::format("{:.2f}", position / length);
    case CoordinateNotation::kNormalized1000:
      return fmt::format("{}", std::llround(position / length * 1000));
    case CoordinateNotation::kLocationTokens:
      return fmt::format("<loc{:04}>",
                         static_cast<int>(std::min(position / length * kNumLocations, kNumLocations - 1)));
  }
  throw InternalError("unknown notation of coordinates");
}

/// Returns the value that stands for a position at the right or lower edge, `length` pixels from the
/// other edge.
double get_full_value(double length, CoordinateNotation notation) {
  switch (notation) {
    case CoordinateNotation::kAbsolute:
      return length;
    case CoordinateNotation::kNormalized1:
      return 1;
    case CoordinateNotation::kNormalized1000:
      return 1000;
    case CoordinateNotation::kLocationTokens:
      return 1024;
  }
  throw InternalError("unknown notation of coordinates");
}

/// Returns the text of a box with the numbers x1, y1, x2, y2, or of a point with the numbers x, y.
std::string fill_box_format(const BoxFormat& format, const std::vector<std::string>& numbers) {
  constexpr std::array kNames{"x1", "y1", "x2", "y2"};
  fmt::dynamic_format_arg_store<fmt::format_context> arguments;
  for (size_t i = 0; i < numbers.size(); ++i) arguments.push_back(fmt::arg(kNames[i], numbers[i]));
  return fmt::vformat(numbers.size() == 2 ? format.point : format.box, arguments);
}

/// Returns the smallest box around the positions of a box's corners under `map_point`.
template <class MapPoint>
Box map_corners(const Box& box, const MapPoint& map_point) {
  const auto [x1, y1] = box.top_left;
  const auto [x2, y2] = box.bottom_right;
  const std::array<Point, 4> corners{map_point(Point{x1, y1}), map_point(Point{x2, y1}), map_point(Point{x1, y2}),
                                     map_point(Point{x2, y2})};
  const auto [left, right] = std::ranges::minmax(corners, {}, &Point::x);
  const auto [top, bottom] = std::ranges::minmax(corners, {}, &Point::y);
  return {.top_left = {.x = left.x, .y = top.y}, .bottom_right = {.x = right.x, .y = bottom.y}};
}

/// Returns whether a box is in an image of `size`, up to `tolerance` pixels.
bool is_inside(const Box& box, ImageSize size, double tolerance) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  return box.top_left.x >= -tolerance && box.top_left.y >= -tolerance && box.bottom_right.x <= width + tolerance &&
         box.bottom_right.y <= height + tolerance;
}

/// Returns the part of a box in an image of `size`.
Box clip(const Box& box, ImageSize size) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  const auto clip_point = [&](Point point) {
    return Point{.x = std::clamp(point.x, 0.0, width), .y = std::clamp(point.y, 0.0, height)};
  };
  return {.top_left = clip_point(box.top_left), .bottom_right = clip_point(box.bottom_right)};
}

/// Returns whether an image of `size` contains a box or a point, or a part of the box of at least one
/// pixel in both directions.
bool is_visible(const Box& box, ImageSize size) {
  if (is_inside(box, size, 0)) return true;
  const Box visible = clip(box, size);
  return visible.bottom_right.x - visible.top_left.x >= 1 && visible.bottom_right.y - visible.top_left.y >= 1;
}

/// Returns the box or point of `object` in pixels of an image of `size`. REQUIRES: it is no name.
Box convert_to_pixels(const io::ObjectMark& object, ImageSize size) {
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  double scale_x = 1, scale_y = 1;
  if (object.unit == io::CoordinateUnit::kNormalized1) {
    scale_x = width;
    scale_y = height;
  } else if (object.unit == io::CoordinateUnit::kNormalized1000) {
    scale_x = width / 1000;
    scale_y = height / 1000;
  }
  const std::vector<double>& values = object.coordinates;
  const Point first{.x = values[0] * scale_x, .y = values[1] * scale_y};
  if (values.size() == 2) return {.top_left = first, .bottom_right = first};
  return {.top_left = first, .bottom_right = {.x = values[2] * scale_x, .y = values[3] * scale_y}};
}

/// Returns a private-use character, in UTF-8, that no turn of the record contains.
std::string find_token_delimiter(const io::Record& record) {
  // U+E000 to U+E03F: 0xEE 0x80 and a continuation byte.
  constexpr int kNumCandidates = 64;
  for (int i = 0; i < kNumCandidates; ++i) {
    std::string delimiter{'\xEE', '\x80', static_cast<char>(0x80 + i)};
    if (std::ranges::none_of(record.turns,
                             [&](const text::Turn& turn) { return turn.text.find(delimiter) != std::string::npos; }))
      return delimiter;
  }
  throw data::SampleError(
      "private-use characters",
      fmt::format("sample {} has all private-use characters from U+E000 to U+E03F; remove one of them", record.id));
}

std::string make_token(const std::string& delimiter, size_t slot_index) {
  return fmt::format("{0}{1}{0}", delimiter, slot_index);
}

/// A token in a rendered chat.
struct TokenSpan {
  text::TextSpan span;
  size_t slot_index;
};

/// Returns the tokens in `text` of slots below `num_slots`, in the order of the text.
std::vector<TokenSpan> find_tokens(std::string_view text, const std::string& delimiter, size_t num_slots) {
  std::vector<TokenSpan> tokens;
  for (size_t begin = text.find(delimiter); begin != std::string_view::npos; begin = text.find(delimiter, begin)) {
    const char* const digits = text.data() + begin + delimiter.size();
    size_t slot_index = 0;
    const auto [end, error] = std::from_chars(digits, text.data() + text.size(), slot_index);
    const auto position = static_cast<size_t>(end - text.data());
    begin += delimiter.size();
    if (error != std::errc() || !text.substr(position).starts_with(delimiter) || slot_index >= num_slots) continue;
    tokens.push_back({.span = {begin - delimiter.size(), position + delimiter.size()}, .slot_index = slot_index});
    begin = position + delimiter.size();
  }
  return tokens;
}

std::string format_values(const std::vector<double>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

}  // namespace

ObjectWriter::ObjectWriter(const io::Record& record, BoxFormat format, const data::BoxConversion& conversion)
    : record_(record), format_(std::move(format)), conversion_(conversion), delimiter_(find_token_delimiter(record)) {
  const bool is_unchanged = conversion_.output == data::BoxOutput::kUnchanged;
  for (size_t i = 0; i < record.objects.size(); ++i) {
    const io::ObjectMark& object = record.objects[i];
    if (object.number_ranges.empty() || format_.notation == CoordinateNotation::kLocationTokens) {
      if (object.number_ranges.empty() || !is_unchanged)
        slots_.push_back({.object_index = i, .range = object.range, .number_index = {}});
      continue;
    }
    if (is_unchanged) continue;
    for (size_t number = 0; number < object.number_ranges.size(); ++number)
      slots_.push_back({.object_index = i, .range = object.number_ranges[number], .number_index = number});
  }
  std::ranges::sort(slots_, {}, [&](const Slot& slot) {
    return std::pair(record.objects[slot.object_index].turn_index, slot.range.begin);
  });
}

std::vector<text::Turn> ObjectWriter::insert_tokens(std::vector<text::Turn> turns) const {
  std::vector<std::string> tokens;
  tokens.reserve(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) tokens.push_back(make_token(delimiter_, i));
  replace_slots(turns, tokens);
  return turns;
}

void ObjectWriter::replace_slots(std::vector<text::Turn>& turns, const std::vector<std::string>& texts) const {
  for (size_t i = slots_.size(); i-- > 0;) {  // from the end, so that earlier ranges stay valid
    const auto [begin, end] = slots_[i].range;
    text::Turn& turn = turns[record_.objects[slots_[i].object_index].turn_index];
    turn.text.replace(begin, end - begin, texts[i]);
    for (size_t& offset : turn.literal_placeholder_offsets) {
      if (offset >= end) offset += texts[i].size() - (end - begin);
    }
  }
}

void ObjectWriter::locate(const MediaList& media) {
  image_media_.assign(record_.images.size(), nullptr);
  boxes_.assign(record_.objects.size(), std::nullopt);
  for (size_t i = 0; i < record_.objects.size(); ++i) {
    const io::ObjectMark& object = record_.objects[i];
    if (object.is_name()) continue;
    const auto image_index = static_cast<size_t>(object.image_index);
    const io::MediaRef& file = record_.images[image_index];
    const auto medium = std::ranges::find_if(media, [&](const auto& entry) { return &entry->file() == &file; });
    if (file.is_volume || medium == media.end()) {
      throw data::SampleError("a box on a volume",
                              fmt::format("sample {}: the box {} is on a volume, and boxes are supported on images "
                                          "only; remove it",
                                          record_.id, format_values(object.coordinates)));
    }
    image_media_[image_index] = medium->get();
    boxes_[i] = locate_box(object, file, *(*medium)->image_size());
  }
}

Box ObjectWriter::locate_box(const io::ObjectMark& object, const io::MediaRef& file, ImageSize size) const {
  constexpr double kTolerance = 1;  // pixel; annotation tools round outwards
  Box box{};
  if (conversion_.orientation == data::BoxOrientation::kStored) {
    const image::StoredImageMap stored_image(file);
    box = map_corners(convert_to_pixels(object, stored_image.stored_size()),
                      [&](Point point) { return stored_image.map(point); });
  } else {
    box = convert_to_pixels(object, size);
  }
  if (is_inside(box, size, kTolerance)) return clip(box, size);
  const bool fits_stored_image = conversion_.orientation == data::BoxOrientation::kDisplayed &&
                                 is_inside(box, {.height = size.width, .width = size.height}, kTolerance);
  throw data::SampleError(
      "a box outside of its image",
      fmt::format("sample {}: the box {} is outside of its image of {} x {} pixels ({}); correct it, or its unit "
                  "(\"bbox_type\" or {}){}",
                  record_.id, format_values(object.coordinates), size.width, size.height, file.path,
                  keys::data::kBoxesIn,
                  fits_stored_image ? fmt::format("; for boxes of photos before their EXIF rotation, set {}=stored",
                                                  keys::data::kBoxesOrientation)
                                    : ""));
}

Box ObjectWriter::map_to_view(size_t object_index, const PixelLimits& limits,
                              const image::Augmentation& augmentation) const {
  const io::ObjectMark& object = record_.objects[object_index];
  const Medium& medium = *image_media_[static_cast<size_t>(object.image_index)];
  const ImageSize size = *medium.image_size();
  const ImageView view = *medium.compute_view(limits);
  const Box box = map_corners(*boxes_[object_index],
                              [&](Point point) { return view.map(image::augment_point(point, size, augmentation)); });
  if (is_visible(box, view.size)) return clip(box, view.size);
  // Unchanged numbers do not depend on the view, so that the box is only shown at its edge.
  if (conversion_.output == data::BoxOutput::kUnchanged) return clip(box, view.size);
  throw data::SampleError(
      "a box outside of the model's image",
      fmt::format("sample {}: the model's processor crops the image to its center, which does not contain the box {}; "
                  "remove it, or set do_center_crop=false in the checkpoint's preprocessor_config.json",
                  record_.id, format_values(object.coordinates)));
}

std::vector<std::string> ObjectWriter::write_numbers(size_t object_index, const PixelLimits& limits,
                                                     const image::Augmentation& augmentation) const {
  const io::ObjectMark& object = record_.objects[object_index];
  std::vector<std::string> numbers;
  if (conversion_.output == data::BoxOutput::kUnchanged) {
    for (const double value : object.coordinates) numbers.push_back(fmt::format("{}", value));
    return numbers;
  }
  const Box box = map_to_view(object_index, limits, augmentation);
  const ImageSize size = image_media_[static_cast<size_t>(object.image_index)]->compute_view(limits)->size;
  const auto width = static_cast<double>(size.width), height = static_cast<double>(size.height);
  for (const Point& point : {box.top_left, box.bottom_right}) {
    numbers.push_back(format_coordinate(point.x, width, format_.notation));
    numbers.push_back(format_coordinate(point.y, height, format_.notation));
  }
  numbers.resize(object.coordinates.size());
  return numbers;
}

std::vector<std::string> ObjectWriter::write_slots(const PixelLimits& limits,
                                                   const image::Augmentation& augmentation) const {
  std::vector<std::vector<std::string>> numbers(record_.objects.size());  // once for all slots of a box
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!record_.objects[i].is_name()) numbers[i] = write_numbers(i, limits, augmentation);
  }
  std::vector<std::string> texts;
  texts.reserve(slots_.size());
  for (const Slot& slot : slots_) {
    const io::ObjectMark& object = record_.objects[slot.object_index];
    if (object.is_name()) {
      texts.push_back(fmt::format(fmt::runtime(format_.name), fmt::arg("name", object.name)));
      continue;
    }
    const std::vector<std::string>& box = numbers[slot.object_index];
    texts.push_back(slot.number_index ? box[*slot.number_index] : fill_box_format(format_, box));
  }
  return texts;
}

text::RenderedChat ObjectWriter::write(const text::RenderedChat& chat, const PixelLimits& limits,
                                       const image::Augmentation& augmentation) const {
  const std::vector<std::string> slot_texts = write_slots(limits, augmentation);
  std::vector<text::TextSpan> spans;
  std::vector<std::string> texts;
  std::vector<bool> is_written(slots_.size());
  for (const auto& [span, slot_index] : find_tokens(chat.text, delimiter_, slots_.size())) {
    if (is_written[slot_index]) {
      throw data::SampleError("refused by the chat template",
                              fmt::format("sample {}: the chat template writes a box more than once; set another {}",
                                          record_.id, keys::data::kChatTemplate));
    }
    is_written[slot_index] = true;
    spans.push_back(span);
    texts.push_back(slot_texts[slot_index]);
  }
  return replace_spans(chat, spans, texts);
}

WrittenRecord ObjectWriter::write_record(const PixelLimits& limits) const {
  WrittenRecord written{.turns = record_.turns, .coordinate_maps = {}};
  replace_slots(written.turns, write_slots(limits, {}));
  for (const Medium* medium : image_media_)
    written.coordinate_maps.push_back(medium == nullptr ? CoordinateMap{} : make_coordinate_map(*medium, limits));
  return written;
}

CoordinateMap ObjectWriter::make_coordinate_map(const Medium& medium, const PixelLimits& limits) const {
  const ImageSize size = *medium.image_size();
  ImageView view = *medium.compute_view(limits);
  CoordinateNotation notation = format_.notation;
  if (conversion_.output == data::BoxOutput::kUnchanged) {
    const auto object = std::ranges::find_if(record_.objects, [](const auto& entry) { return !entry.is_name(); });
    view = {.size = size};
    notation = object->unit == io::CoordinateUnit::kAbsolute      ? CoordinateNotation::kAbsolute
               : object->unit == io::CoordinateUnit::kNormalized1 ? CoordinateNotation::kNormalized1
                                                                  : CoordinateNotation::kNormalized1000;
  }
  const double width = static_cast<double>(view.size.width), height = static_cast<double>(view.size.height);
  return {.scale_x = width / get_full_value(width, notation) / view.scale_x,
          .scale_y = height / get_full_value(height, notation) / view.scale_y,
          .offset_x = -view.offset_x / view.scale_x,
          .offset_y = -view.offset_y / view.scale_y};
}

image::Augmentation ObjectWriter::limit_augmentation(image::Augmentation augmentation) const {
  constexpr double kTolerance = 1e-6;  // of the rotation's floating-point arithmetic, in pixels
  const bool stays_inside = std::ranges::all_of(record_.objects, [&](const io::ObjectMark& object) {
    if (object.is_name()) return true;
    const ImageSize size = *image_media_[static_cast<size_t>(object.image_index)]->image_size();
    const Box& box = *boxes_[static_cast<size_t>(&object - record_.objects.data())];
    return is_inside(map_corners(box, [&](Point point) { return image::augment_point(point, size, augmentation); }),
                     size, kTolerance);
  });
  return stays_inside ? augmentation : image::Augmentation{.brightness_factor = augmentation.brightness_factor};
}

std::vector<Box> ObjectWriter::get_preview_boxes(const Medium& medium, const PixelLimits& limits,
                                                 ImageSize preview_size) const {
  std::vector<Box> boxes;
  for (size_t i = 0; i < record_.objects.size(); ++i) {
    const io::ObjectMark& object = record_.objects[i];
    if (object.is_name() || image_media_[static_cast<size_t>(object.image_index)] != &medium) continue;
    const ImageView preview = make_resized_view(medium.compute_view(limits)->size, preview_size);
    boxes.push_back(map_corners(map_to_view(i, limits, {}), [&](Point point) { return preview.map(point); }));
  }
  return boxes;
}

}  // namespace vlmtrain::models
