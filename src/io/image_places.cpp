#include "io/image_places.h"

#include <algorithm>
#include <ranges>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

std::string path_of(const json& value, size_t number) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    throw data_error("image {} is not a path", number);
  }
  return value.get<std::string>();
}

void add_images(const json& value, std::vector<std::string>& images) {
  if (!value.is_array()) {
    images.push_back(path_of(value, images.size() + 1));
    return;
  }
  for (const json& item : value) {
    images.push_back(path_of(item, images.size() + 1));
  }
}

std::string local_path(std::string image, size_t number) {
  constexpr std::string_view kFileScheme = "file://";
  if (image.starts_with(kFileScheme)) {
    return image.substr(kFileScheme.size());
  }
  for (const std::string_view scheme : {"http://", "https://", "data:"}) {
    if (image.starts_with(scheme)) {
      throw data_error("image {} is a {}... address, only files are read: save the image and give its path", number,
                       scheme);
    }
  }
  return image;
}

void mark_first_user_turn(size_t count, std::vector<Turn>& turns) {
  const auto user = std::ranges::find(turns, Role::kUser, &Turn::role);
  VLMTRAIN_CHECK(user != turns.end(), "a conversation without a user");
  std::string marks;
  for (size_t i = 0; i < count; ++i) {
    marks += kImageMark;
  }
  user->text = marks + "\n" + user->text;
}

}  // namespace

std::vector<std::string> listed_images(const json& record) {
  std::vector<std::string> images;
  bool seen = false;
  for (const char* key : {"image", "images"}) {
    const auto found = record.find(key);
    if (found == record.end() || found->is_null()) {
      continue;
    }
    if (seen) {
      throw data_error("has both \"image\" and \"images\": keep one");
    }
    seen = true;
    add_images(*found, images);
  }
  return images;
}

void ImagePlaces::add_marks_in(std::string_view text) {
  for (size_t at = text.find(kImageMark); at != std::string_view::npos;
       at = text.find(kImageMark, at + kImageMark.size())) {
    places_.emplace_back();
  }
}

std::vector<std::string> ImagePlaces::fill(const std::vector<std::string>& listed, std::vector<Turn>& turns) const {
  std::vector<std::optional<std::string>> places = places_;
  if (places.empty() && !listed.empty()) {
    mark_first_user_turn(listed.size(), turns);
    places.resize(listed.size());
  }
  const auto waiting = static_cast<size_t>(std::ranges::count_if(places, [](const auto& place) { return !place; }));
  if (waiting != listed.size()) {
    throw data_error("has {} {} marks for {} images: each image needs one mark", waiting, kImageMark, listed.size());
  }
  std::vector<std::string> images;
  images.reserve(places.size());
  auto next = listed.begin();
  for (const std::optional<std::string>& place : places) {
    images.push_back(local_path(place ? *place : *next++, images.size() + 1));
  }
  return images;
}

}  // namespace vlmtrain::io
