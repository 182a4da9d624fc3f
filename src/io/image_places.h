#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/io/conversation.h"

namespace vlmtrain::io {

/// The images that a record lists beside its turns: "image" or "images", a string or a list of strings. Problems are
/// data_errors, here and below.
std::vector<std::string> listed_images(const nlohmann::json& record);

/// The places of a conversation's images, collected turn by turn: each is a mark, with an image of its own (a content
/// block that names one) or waiting for the next of the listed images.
class ImagePlaces {
 public:
  void add(std::optional<std::string> image) { places_.push_back(std::move(image)); }
  void add_marks_in(std::string_view text);

  /// The images in the order of their marks. Where no turn has a mark, marks for all images go to the start of the
  /// first user turn.
  std::vector<std::string> fill(const std::vector<std::string>& listed, std::vector<Turn>& turns) const;

 private:
  std::vector<std::optional<std::string>> places_;
};

}  // namespace vlmtrain::io
