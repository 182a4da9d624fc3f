#pragma once

#include <optional>
#include <string>

#include "vlmtrain/base/options.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::data {

/// Values of data.boxes.in: the unit of coordinates in the texts of the data.
enum class BoxInput { kNone, kAbsolute, kNormalized1, kNormalized1000 };

/// Values of data.boxes.out: how boxes are written for the model.
enum class BoxOutput {
  kModel,      ///< in the format of the model family's training data
  kUnchanged,  ///< with the numbers of the data
  kAbsolute,
  kNormalized1,
  kNormalized1000,
  kLocationTokens
};

/// Values of data.boxes.orientation: the image in whose pixels boxes are given.
enum class BoxOrientation {
  kDisplayed,  ///< after its EXIF orientation is applied, as viewers show it
  kStored,     ///< before
};

/// The settings of the conversion of boxes by a processor.
struct BoxConversion {
  BoxOutput output = BoxOutput::kModel;
  BoxOrientation orientation = BoxOrientation::kDisplayed;
};

/// The section `data.boxes` of the configuration. declare_options() documents the values.
struct BoxOptions {
  BoxInput input = BoxInput::kNone;
  std::string pattern;
  BoxConversion conversion;

  /// Returns the settings of the record reader.
  io::BoxSettings make_box_settings() const;
};

/// Declares the keys data.boxes.* with their types, defaults and descriptions. `options` must outlive
/// `table`.
void declare_options(OptionTable& table, BoxOptions& options);

}  // namespace vlmtrain::data
