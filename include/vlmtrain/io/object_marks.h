#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/base/hash.h"

namespace vlmtrain::io {

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

}  // namespace vlmtrain::io
