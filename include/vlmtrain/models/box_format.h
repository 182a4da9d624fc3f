#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/data/media_options.h"
#include "vlmtrain/image/points.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::models {

/// How the coordinates of boxes and points are written in the text of a model. They refer to the
/// image as the vision tower gets it: after its resize, padding and cropping.
enum class CoordinateNotation {
  kAbsolute,        ///< pixels, rounded to integers
  kNormalized1,     ///< fractions of width and height with two decimals, as in LLaVA's data
  kNormalized1000,  ///< thousandths of width and height, rounded to integers
  kLocationTokens,  ///< <loc0000> to <loc1023>, 1024ths of height and width, as in PaliGemma
};

/// The text of boxes, points and names of objects in the training data of a model family. The texts
/// have the fields {x1}, {y1}, {x2}, {y2} and {name}.
struct BoxFormat {
  CoordinateNotation notation = CoordinateNotation::kNormalized1000;
  std::string box = "[{x1}, {y1}, {x2}, {y2}]";
  std::string point = "[{x1}, {y1}]";
  std::string name = "{name}";
};

/// A map from coordinates in a model's text to pixels of the decoded image: value · scale + offset.
struct CoordinateMap {
  double scale_x = 1, scale_y = 1;
  double offset_x = 0, offset_y = 0;

  image::Box map(double x1, double y1, double x2, double y2) const {
    return {.top_left = {.x = x1 * scale_x + offset_x, .y = y1 * scale_y + offset_y},
            .bottom_right = {.x = x2 * scale_x + offset_x, .y = y2 * scale_y + offset_y}};
  }
};

/// The texts of a record as a model reads them.
struct WrittenRecord {
  std::vector<io::Turn> turns;                 ///< the turns with names, boxes and points written
  std::vector<CoordinateMap> coordinate_maps;  ///< by image of Record::images
};

}  // namespace vlmtrain::models
