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

constexpr size_t kMaxNameLength = 120;

bool is_file_name_character(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
         (character >= '0' && character <= '9') || character == '.' || character == '-' || character == '_';
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

std::string MaskOverlays::make_unique_name(const std::string& id) {
  std::string plain = id.substr(0, kMaxNameLength);
  std::ranges::replace_if(
      plain, [](char character) { return !is_file_name_character(character); }, '_');
  if (plain.empty() || plain.front() == '.') plain.insert(plain.begin(), '_');
  std::string name = plain;
  for (int64_t number = 2; !names_.insert(name).second; ++number) name = fmt::format("{}_{}", plain, number);
  return name;
}

void MaskOverlays::add(const io::Record& record, const evaluation::Answer& answer) {
  if (answer.masks.empty()) return;
  make_mask_folder(folder_);
  std::map<int64_t, std::vector<const evaluation::MaskPrediction*>> masks_by_image;
  for (const auto& mask : answer.masks) masks_by_image[mask.image].push_back(&mask);
  for (const auto& [image_index, masks] : masks_by_image) {
    std::vector<at::Tensor> predicted, true_masks;
    for (const auto* mask : masks) {
      predicted.push_back(mask->predicted);
      true_masks.push_back(mask->truth);
    }
    const at::Tensor image = image::decode_image(record.images.at(static_cast<size_t>(image_index)));
    io::write_file(fs::path(folder_) / (make_unique_name(answer.id) + ".png"),
                   image::encode_png(image::draw_mask_comparison(image, predicted, true_masks)));
    ++num_written_;
  }
}

}  // namespace vlmtrain::app
