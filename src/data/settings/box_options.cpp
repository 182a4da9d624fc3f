#include "vlmtrain/data/box_options.h"

namespace vlmtrain::data {

io::BoxSettings BoxOptions::make_box_settings() const {
  io::BoxSettings settings{.unit = {}, .pattern = pattern};
  if (input == BoxInput::kAbsolute) settings.unit = io::CoordinateUnit::kAbsolute;
  if (input == BoxInput::kNormalized1) settings.unit = io::CoordinateUnit::kNormalized1;
  if (input == BoxInput::kNormalized1000) settings.unit = io::CoordinateUnit::kNormalized1000;
  return settings;
}

void declare_options(OptionTable& table, BoxOptions& options) {
  table.add_enum(
      keys::data::kBoxesIn, options.input,
      {{"none", BoxInput::kNone},
       {"absolute", BoxInput::kAbsolute},
       {"normalized_1", BoxInput::kNormalized1},
       {"normalized_1000", BoxInput::kNormalized1000}},
      {.doc = "Unit of coordinates in the texts of turns, which are rewritten for the model as the image is resized, "
              "padded and cropped (docs/data.md). none: texts are not searched for coordinates. absolute: pixels of "
              "the image. normalized_1: 0 to 1. normalized_1000: 0 to 1000. Also the unit of boxes under `objects` "
              "without a `bbox_type`, which are in pixels with none.",
       .resume = ResumeRule::kIfRequested});
  table.add(
      keys::data::kBoxesPattern, options.pattern,
      {.doc =
           "Regular expression (PCRE2) that finds the coordinates, with a group for each number: x1, y1, x2, y2 of a "
           "box or x, y of a point, in this order or with these names (`(?<x1>\\d+)`). Empty: boxes such as "
           "`[x1, y1, x2, y2]` and `(x1,y1),(x2,y2)`.",
       .resume = ResumeRule::kIfRequested});
  table.add_enum(
      keys::data::kBoxesOut, options.conversion.output,
      {{"model", BoxOutput::kModel},
       {"unchanged", BoxOutput::kUnchanged},
       {"absolute", BoxOutput::kAbsolute},
       {"normalized_1", BoxOutput::kNormalized1},
       {"normalized_1000", BoxOutput::kNormalized1000},
       {"location_tokens", BoxOutput::kLocationTokens}},
      {.doc = "How coordinates are written for the model. model: as in the training data of the model family "
              "(docs/data.md). unchanged: the numbers of the data. absolute: pixels of the resized image. "
              "normalized_1: 0 to 1. normalized_1000: 0 to 1000. location_tokens: `<loc0000>` to `<loc1023>`.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"norm_bbox"}, .text = "data.boxes.out: the format of the model family by default"}}});
  table.add_enum(
      keys::data::kBoxesOrientation, options.conversion.orientation,
      {{"displayed", BoxOrientation::kDisplayed}, {"stored", BoxOrientation::kStored}},
      {.doc = "The image in which boxes are given, for photos with an EXIF orientation. displayed: as viewers show "
              "it. stored: as its pixels are stored, before it is rotated.",
       .resume = ResumeRule::kIfRequested});
}

}  // namespace vlmtrain::data
