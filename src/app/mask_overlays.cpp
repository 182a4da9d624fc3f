#include "app/mask_overlays.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "app/mask_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/image/overlay.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::app {

namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestName = 120;

bool is_plain(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
         letter == '.' || letter == '-' || letter == '_';
}

}  // namespace

MaskOverlays::MaskOverlays(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  if (fs::exists(folder_, error) && (!fs::is_directory(folder_, error) || !fs::is_empty(folder_, error))) {
    throw usage_error(
        "--mask-out: {} exists and is no empty folder; samples' ids name the files, so they could replace others; name "
        "a folder that is new or empty",
        folder_);
  }
}

std::string MaskOverlays::name_for(const std::string& id) {
  std::string plain = id.substr(0, kLongestName);
  std::ranges::replace_if(
      plain, [](char letter) { return !is_plain(letter); }, '_');
  if (plain.empty() || plain.front() == '.') plain.insert(plain.begin(), '_');
  std::string name = plain;
  for (int64_t number = 2; !names_.insert(name).second; ++number) name = fmt::format("{}_{}", plain, number);
  return name;
}

void MaskOverlays::add(const io::Record& record, const evaluation::Answer& answer) {
  if (answer.masks.empty()) return;
  make_mask_folder(folder_);
  std::map<int64_t, std::vector<const evaluation::DrawnMask*>> by_picture;
  for (const auto& mask : answer.masks) by_picture[mask.image].push_back(&mask);
  for (const auto& [place, masks] : by_picture) {
    std::vector<at::Tensor> drawn, truths;
    for (const auto* mask : masks) {
      drawn.push_back(mask->drawn);
      truths.push_back(mask->truth);
    }
    const at::Tensor picture = image::decode_image(record.images.at(static_cast<size_t>(place)));
    io::write_file(fs::path(folder_) / (name_for(answer.id) + ".png"),
                   image::encode_png(image::draw_beside_truth(picture, drawn, truths)));
    ++written_;
  }
}

}  // namespace vlmtrain::app
